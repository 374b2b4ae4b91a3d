"""Starting flows and telling them apart."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    Context,
    DexServiceError,
    Flow,
    FlowAlreadyStartedError,
    FlowNotFoundError,
    FlowStatus,
    IdReusePolicy,
    RPCResult,
    StartFlowOptions,
    StepDecision,
    StepList,
    StepMovement,
    StopFlowOptions,
    StopType,
    Wait,
    go_to,
    rpc,
)
from engine_testing.probe import INBOX, NOTE, PROBE, Alpha, Script, Waiter
from engine_testing.world import World, open_world, until

behaviour = pytest.mark.behaviour


def parked() -> Script:
    """A flow that waits for a message from its first Step on."""

    async def start(context: AsyncContext, given: str) -> StepDecision:
        return go_to(Waiter, given)

    async def wait(context: AsyncContext, given: str) -> Wait:
        return Wait.until(INBOX.for_one())

    return Script(execute={"Start": start}, wait_for={"Waiter": wait})


@behaviour("start.returns-run-id")
async def test_a_started_flow_is_running_at_once(world: World) -> None:
    script = parked()
    run_id = await world.start(script)
    info = await world.client.describe_flow(script.flow_id)
    assert run_id
    assert info.run_id == run_id
    assert info.status is FlowStatus.RUNNING
    assert info.flow_type == "Probe"


@behaviour("start.second-start-is-rejected")
async def test_a_second_start_of_an_active_flow_is_rejected_and_changes_nothing(
    world: World,
) -> None:
    script = parked()
    run_id = await world.start(script)
    await until(lambda: script.calls_of("Waiter", "wait_for"))
    with pytest.raises(FlowAlreadyStartedError):
        await world.start(script)
    assert (await world.client.describe_flow(script.flow_id)).run_id == run_id
    await world.call(PROBE.send, script.flow_id, "m")
    await world.result(script)
    assert [call.step for call in script.calls] == ["Start-1", "Waiter-1", "Waiter-1"]


@behaviour("start.same-request-id-is-idempotent")
async def test_a_repeated_request_gets_the_same_run_and_runs_no_new_step(world: World) -> None:
    script = Script()
    request = str(uuid.uuid4())
    options = {"request_id": request, "ignore_already_started": True}
    first = await world.start(script, "a", **options)
    await world.result(script)
    assert await world.start(script, "b", **options) == first
    assert len(script.calls) == 1


@behaviour("start.other-request-id-is-rejected")
async def test_another_request_id_is_rejected_even_with_the_idempotency_flag(world: World) -> None:
    script = parked()
    await world.start(script, ignore_already_started=True)
    with pytest.raises(FlowAlreadyStartedError):
        await world.start(script, ignore_already_started=True)


@behaviour("start.closed-id-reuse")
async def test_a_closed_id_is_taken_unless_the_policy_allows_another_run(world: World) -> None:
    script = Script()
    first = await world.start(script)
    await world.result(script)
    with pytest.raises(FlowAlreadyStartedError):
        await world.start(script)
    second = await world.start(script, id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING)
    assert second != first
    await world.result(script)


@behaviour("start.reuse-after-abnormal-end")
async def test_abnormal_reuse_is_refused_after_completion_and_allowed_after_a_stop(
    world: World,
) -> None:
    policy = IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED
    completed = Script()
    await world.start(completed)
    await world.result(completed)
    with pytest.raises(FlowAlreadyStartedError):
        await world.start(completed, id_reuse_policy=policy)
    stopped = parked()
    await world.start(stopped)
    await world.client.stop_flow(stopped.flow_id)
    assert await world.start(stopped, id_reuse_policy=policy)


@behaviour("start.terminate-if-running")
async def test_terminate_if_running_ends_the_old_run_and_starts_another(world: World) -> None:
    script = parked()
    first = await world.start(script)
    second = await world.start(script, id_reuse_policy=IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING)
    assert second != first
    info = await world.client.describe_flow(script.flow_id)
    assert (info.run_id, info.status) == (second, FlowStatus.RUNNING)


@behaviour("start.initial-attributes")
async def test_initial_attributes_are_seen_by_the_first_step_and_by_an_rpc(world: World) -> None:
    script = parked()
    seen: list[str] = []

    async def start(context: AsyncContext, given: str) -> StepDecision:
        seen.append(NOTE.get(context))
        return go_to(Waiter, given)

    async def look(context: Context, given: str) -> RPCResult[str]:
        return RPCResult(NOTE.get(context))

    script.execute["Start"] = start
    script.rpc["look"] = look
    options = StartFlowOptions().with_attribute(NOTE, "early")
    await world.client.start_flow(PROBE, script.flow_id, "", options)
    assert await world.call(PROBE.look, script.flow_id, "") == "early"
    await until(lambda: seen == ["early"])


@behaviour("describe.unknown-flow")
async def test_an_unknown_flow_is_reported_as_such(bare_world: World) -> None:
    with pytest.raises(FlowNotFoundError):
        await bare_world.client.describe_flow("no-such-flow")


@behaviour("describe.closed-flow")
async def test_a_closed_flow_can_be_described(world: World) -> None:
    script = parked()
    await world.start(script)
    await world.client.stop_flow(script.flow_id, StopFlowOptions(type=StopType.TERMINATE))
    info = await world.client.describe_flow(script.flow_id)
    assert info.status is FlowStatus.TERMINATED


@behaviour("start.reserved-characters")
@pytest.mark.parametrize("flow_id", ["a/b", "a:b", "a$b"])
async def test_a_flow_id_with_a_reserved_character_is_refused(
    bare_world: World, flow_id: str
) -> None:
    with pytest.raises(DexServiceError) as refusal:
        await bare_world.client.start_flow(PROBE, flow_id, "")
    assert refusal.value.code.name == "INVALID_ARGUMENT"


@behaviour("start.delay")
async def test_a_start_delay_withholds_the_first_step_while_messages_are_taken(
    world: World,
) -> None:
    script = parked()
    await world.start(script, "in", start_delay=timedelta(seconds=1))
    await world.call(PROBE.send, script.flow_id, "early")
    assert script.calls == []
    assert (await world.result(script)).single_output(str) == "in"


class Stepless(Flow[None]):
    """A flow that does nothing by itself."""

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Alpha())

    @rpc
    async def begin(self, context: Context, input: str) -> RPCResult[str]:
        return RPCResult("begun", next_steps=(StepMovement.of(Alpha, input),))


@behaviour("start.without-step")
async def test_a_flow_without_a_first_step_is_driven_by_an_rpc(
    engine_address: str, tmp_path: Path
) -> None:
    stepless = Stepless()
    script = Script()
    async with (
        open_world(engine_address, tmp_path, [stepless]) as world,
        world.worker(flows=[stepless]),
    ):
        await world.client.start_flow(stepless, script.flow_id, None)
        assert (await world.client.describe_flow(script.flow_id)).status is FlowStatus.RUNNING
        assert await world.call(stepless.begin, script.flow_id, "by rpc") == "begun"
        assert (await world.result(script)).single_output(str) == "by rpc"
