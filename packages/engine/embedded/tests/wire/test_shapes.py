"""What a worker sends comes back from history as it was sent: the two directions hold one shape."""

# The two directions meet in no public function.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest
from dex.dexpb import dex_pb2 as pb

from dex_embedded._wire import decode, history

CONDITION = pb.WaitingCondition(
    waiting_condition_type=pb.WAITING_CONDITION_TYPE_ANY_COMBINATION_COMPLETED,
    timer_conditions=[pb.TimerCondition(condition_id="t", duration_seconds=7)],
    channel_conditions=[
        pb.ChannelCondition(condition_id="c", channel_name="Inbox", at_least=1, at_most=3),
        pb.ChannelCondition(condition_id="d", channel_name="Other", at_most=0),
    ],
    condition_combinations=[pb.ConditionCombination(condition_ids=["t", "c"])],
)
RETRY = pb.RetryPolicy(
    initial_interval_seconds=1,
    backoff_coefficient=2.5,
    maximum_interval_seconds=3,
    maximum_attempts=4,
    total_duration_seconds=5,
)
DECISION = pb.StepDecision(
    next_steps=[
        pb.StepMovement(
            step_type="Next",
            step_input=pb.Value(int_value=1),
            step_options=pb.StepOptions(execute_retry_policy=RETRY, skip_wait_for=True),
        )
    ],
    close_decision=pb.CloseDecision(
        close_decision_type=pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE_ON_CHANNELS_EMPTY,
        conditional_channel_names=["Inbox"],
        close_input=pb.Value(string_value="done"),
    ),
    cancel_step_types=["Other"],
    cancel_sibling_step_types=["Sibling"],
)

NOT_SENT_BY_WORKERS = {
    "firing_unix_timestamp_seconds",
    "from_step_execution_id_internal_only",
    "recovery_error_internal_only",
}
NOT_SERVED = {"sub_flow_conditions"}


def test_a_condition_a_decision_and_a_policy_come_back_as_they_were_sent() -> None:
    condition, decision, retry = pb.WaitingCondition(), pb.StepDecision(), pb.RetryPolicy()
    history._condition(condition, decode._decode_condition(CONDITION))
    history._decision(decision, decode._decode_decision(DECISION))
    history.encode_retry(retry, decode.decode_retry(RETRY))
    assert (condition, decision, retry) == (CONDITION, DECISION, RETRY)


@pytest.mark.parametrize(
    "message",
    [
        CONDITION,
        CONDITION.timer_conditions[0],
        CONDITION.channel_conditions[0],
        CONDITION.condition_combinations[0],
        RETRY,
        DECISION,
        DECISION.next_steps[0],
        DECISION.close_decision,
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_samples_leave_no_field_out_so_that_a_new_one_is_noticed(message: Any) -> None:
    fields = {field.name for field in message.DESCRIPTOR.fields}
    sent = {field.name for field, _ in message.ListFields()}
    assert fields - sent <= NOT_SENT_BY_WORKERS | NOT_SERVED
