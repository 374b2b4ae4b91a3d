"""The shop behind the support agent: orders, cases and refunds in plain files.

It stands for systems that the agent does not own. What happened there stays there, whatever becomes
of the agent's process; that is why its files can prove how often something was done.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ORDERS: dict[str, dict[str, Any]] = {
    "7": {"order_id": "7", "item": "a blue teapot", "total": 48.5, "status": "delivered"},
    "8": {"order_id": "8", "item": "two red cups", "total": 19.0, "status": "on its way"},
}


class Shop:
    """The shop's systems.

    Args:
        folder: Where the shop keeps its files; created when missing.
        read_seconds: How long a look-up takes.
    """

    def __init__(self, folder: Path, read_seconds: float = 1.0) -> None:
        self._folder = folder
        self._read_seconds = read_seconds
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_environment(cls) -> Shop:
        """Open the shop that `SUPPORT_SHOP_DIR` and `SUPPORT_SHOP_READ_SECONDS` describe."""
        seconds = float(os.environ.get("SUPPORT_SHOP_READ_SECONDS", "1"))
        return cls(Path(os.environ["SUPPORT_SHOP_DIR"]), seconds)

    async def read_order(self, order_id: str, key: str) -> dict[str, Any] | None:
        """Look an order up. The look-up is slow and notes its start and its end."""
        self._note("look_up_order", key, "started")
        await asyncio.sleep(self._read_seconds)
        self._note("look_up_order", key, "finished")
        order = ORDERS.get(order_id)
        if order is None:
            return None
        refunded = any(refund["order_id"] == order_id for refund in self.refunds())
        return {**order, "status": "refunded" if refunded else order["status"]}

    def open_case(self, order_id: str, reason: str, key: str) -> str:
        """Open a case. The same key gives the same case, however often it is sent."""
        cases = {case["key"]: case["case_id"] for case in self._lines("cases.jsonl")}
        if key not in cases:
            cases[key] = f"case-{len(cases) + 1}"
            case = {"case_id": cases[key], "order_id": order_id, "reason": reason, "key": key}
            self._append("cases.jsonl", case)
        return cases[key]

    def refund(self, order_id: str, amount: float, key: str) -> str:
        """Pay money back. Nothing protects it from being done twice."""
        refund_id = f"refund-{sum(1 for _ in self.refunds()) + 1}"
        refund = {"refund_id": refund_id, "order_id": order_id, "amount": amount, "key": key}
        self._append("refunds.jsonl", refund)
        return refund_id

    def refunds(self) -> Iterator[dict[str, Any]]:
        """Every refund that was ever made: the shop's own log."""
        return self._lines("refunds.jsonl")

    def look_ups(self) -> Iterator[dict[str, Any]]:
        """Every start and end of a look-up, with the process that made it."""
        return self._lines("look-ups.jsonl")

    def _note(self, tool: str, key: str, phase: str) -> None:
        note = {"tool": tool, "key": key, "phase": phase, "pid": os.getpid(), "at": time.time()}
        self._append("look-ups.jsonl", note)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._folder / name
        if path.exists():
            yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())
