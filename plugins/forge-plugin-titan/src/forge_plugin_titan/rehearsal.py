"""What would make a trainer's first step slow, done while the other roles start.

    rehearse(engine)

On a GPU the first forward and backward pass loads kernels and compiles blocks (seconds, minutes with nothing in the
compiler's cache), and the generator, which takes longer to start, would wait for it after the first rollouts. Not all
of it is done here: the compiler fuses norms in another way where a micro-batch is long (from 2,560 tokens in the shape
of Qwen3-0.6B), and compiles again when it meets the first of those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_host.loop.batch import Row, make_batches
from forge_host.types import Completion

if TYPE_CHECKING:
    from forge_plugin_titan.engine import TitanEngine

#: Tokens of a prompt and of its responses in two micro-batches. These differ in length, in their longest row and in the
#: number of segments (`VarlenPlan` counts them by 64), so that the compiler takes all three for sizes that change. Few
#: tokens, because a generator on the same GPU counts what another process takes while it starts as its own.
LENGTHS = ((16, 16, 16), (32, 240, *[2] * 72))


def rehearse(engine: TitanEngine) -> None:
    """Forward and backward passes whose gradients are dropped; weights, optimizer and step stay as they are.

    Every rank has to call it, and all of them compute the same.

    Raises:
        RunError: memory ran out, naming the phase.
    """
    limit, ranks = engine.training.seq_len, engine.degrees.data
    for prompt, *responses in LENGTHS:
        prompt = min(prompt, limit // 2)
        inputs, targets = make_batches([_row(prompt, min(length, limit - prompt)) for length in responses], 1)
        engine.rehearse(inputs * ranks, targets * ranks)


def _row(prompt: int, response: int) -> Row:
    completion = Completion(text="", prompt_ids=[0] * prompt, token_ids=[0] * response, logprobs=[0.0] * response)
    return Row(completion, 0, 0.0, 1.0)
