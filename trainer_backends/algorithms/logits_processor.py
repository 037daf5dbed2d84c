"""Token control in transformers: ``model.generate(…, logits_processor=[ThinkingProcessor(control)])``.

transformers calls it with raw logits, before temperature, top-k and top-p, so that a forced token is the only one left.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...errors import InvalidRequest
from .thinking import Control, Trace, overwrite


class ThinkingProcessor:
    """Bring a control into one ``generate`` call at a time; every row of the batch is a request.

    Args:
        control: without requests of its own, on the model's device.

    Beam search is not supported: it reorders the rows without saying so.
    """

    def __init__(self, control: Control) -> None:
        self.control = control
        self._length = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logits of the next token of every row, with forced rows overwritten.

        Args:
            input_ids: int; (rows, tokens so far), prompts included.
            scores: float; (rows, vocabulary).

        Raises:
            InvalidRequest: a new ``generate`` call before :meth:`finish`.
        """
        rows, length = input_ids.shape
        if not self._length:
            for row, prompt in enumerate(input_ids.tolist()):
                self.control.add(row, prompt)
        elif length != self._length + 1 or rows != len(self.control):
            raise InvalidRequest("The last generation is not finished.", hint="Call finish() after each generate().")
        self._length = length
        return overwrite(scores, self.control.step(scores, input_ids[:, -1]))

    def finish(self, lengths: Sequence[int] | None = None) -> list[Trace]:
        """Return what was recorded of every row, and be ready for the next call.

        Args:
            lengths: sampled tokens of every row. A row that ended before the others was padded, and without its length
                the padding is recorded too.
        """
        self._length = 0
        traces = [self.control.remove(row) for row in range(len(self.control))]
        return traces if lengths is None else [each.cut(n) for each, n in zip(traces, lengths, strict=True)]
