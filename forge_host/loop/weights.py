"""Weights from the trainer to every generator: publish, fetch, verify, and the same again for a restarted replica."""

from __future__ import annotations

import asyncio
import time

import structlog

from forge_host.api import Receipt
from forge_host.errors import RunError
from forge_host.loop.checksum import weights_digest
from forge_host.loop.pieces import merge_receipts
from forge_host.runtime.handle import ActorDied, ActorHandle
from forge_host.runtime.service import Service

log = structlog.get_logger()


class WeightSync:
    """Moves version after version; `receipt` is the newest.

    Args:
        verify: compare the digest of what a generator loaded with the trainer's.
        timeout_s: deadline of one publish, and of one update.
    """

    def __init__(self, trainer: ActorHandle, generator: Service, *, verify: bool, timeout_s: float) -> None:
        self.trainer, self.generator, self.verify, self.timeout_s = trainer, generator, verify, timeout_s
        self.receipt: Receipt | None = None
        self.verified = 0
        self.pause_s: float | None = None  #: longest time a generator made no tokens during the last update
        self._paused: dict[str, float] = {}  # by mesh, since its start
        generator.on_restart = self.refresh

    async def publish(self, version: int) -> float:
        """Make the trainer's weights version `version`; seconds taken. The trainer may go on training afterwards."""
        began = time.perf_counter()
        receipts = await self.trainer.publish.call(version, timeout_s=self.timeout_s)
        self.receipt = merge_receipts([receipt for receipt in receipts if receipt is not None])
        return time.perf_counter() - began

    async def update(self) -> float:
        """Load the newest version into every generator; seconds taken."""
        began = time.perf_counter()
        receipt = self._published()
        digests = await self.generator.update_weights.fanout(
            receipt, self.verify, timeout_s=self.timeout_s, replace_silent=True
        )
        for digest in digests:
            self._check(receipt, digest)
        seconds = time.perf_counter() - began
        self.pause_s = await self._pause()
        return seconds

    async def _pause(self) -> float | None:
        """What generators' `sync/pause_s` grew by, the most of them; None when none reports it."""
        handles = [r.handle for r in self.generator.replicas if r.healthy and hasattr(r.handle, "metrics")]
        try:
            found = await asyncio.gather(*(h.metrics.call_one(timeout_s=self.timeout_s) for h in handles))
        except ActorDied:
            return None  # the service replaces it at its next request
        totals = {h.mesh: float(m["sync/pause_s"]) for h, m in zip(handles, found, strict=True) if "sync/pause_s" in m}
        grown = [total - self._paused.get(mesh, 0.0) for mesh, total in totals.items()]
        self._paused = totals
        return max(grown, default=None)

    async def refresh(self, handle: ActorHandle) -> None:
        """Bring a restarted replica, which has the initial weights, to the newest version.

        A version that is published meanwhile is not sent to this replica by `update`, so it is loaded here as well.
        """
        loaded = None
        while self.receipt is not loaded:
            receipt = self._published()
            try:
                digest = await handle.update_weights.call_one(receipt, self.verify, timeout_s=self.timeout_s)
            except RunError:
                if self.receipt is receipt or handle.dead is not None:
                    raise
                continue  # the transport has let go of a version that is no longer the newest
            self._check(receipt, digest)
            loaded = receipt

    def _published(self) -> Receipt:
        if self.receipt is None:
            raise RuntimeError("update before the first publish")
        return self.receipt

    def _check(self, receipt: Receipt, digest: str) -> None:
        if not self.verify:
            return
        if receipt.parts and all(part.checksums is not None for part in receipt.parts):
            self.verified += 1  # the generator compared every piece as it came
            return
        if receipt.checksums is None:
            raise RunError("the trainer published no checksums", fix="set training.verify_weight_sync: false")
        expected = weights_digest(receipt.checksums.items())
        if digest != expected:
            raise RunError(
                f"the generator's weights of version {receipt.version} differ from the trainer's "
                f"(digest {digest[:12]}, expected {expected[:12]})",
                fix="use another transport, and report this with the run's logs",
            )
        self.verified += 1
