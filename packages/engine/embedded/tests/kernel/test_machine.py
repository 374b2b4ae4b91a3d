from __future__ import annotations

from hypothesis import settings
from kernel_testing.machine import KernelMachine

TestKernelAgreesWithASimpleModel = KernelMachine.TestCase
TestKernelAgreesWithASimpleModel.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
