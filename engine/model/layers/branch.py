"""How a branch of a layer (attention or MLP) joins the residual stream, and the norms on that way."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.model.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class BranchNorms:
    """The norms around one branch of a layer; see NormPlacement."""

    before: Norm | None = None
    on_output: Norm | None = None      # of the branch, before it joins the residual stream
    after: Norm | None = None          # of the residual stream, once the branch has joined it

    def run(
        self, branch: Callable[[Tensor], Tensor], residual: Tensor, pending: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream after `branch`, and what is still to be added to it: the next norm adds as it reads."""
        output = branch(normed(self.before, residual, pending))
        if self.on_output is not None:
            output = self.on_output(output)
        if self.after is not None:
            return self.after.add(output, residual), None
        return residual, output


def normed(norm: Norm | None, residual: Tensor, pending: Tensor | None) -> Tensor:
    """The normed residual stream, `pending` added to it (in place) first."""
    if norm is None:
        return residual if pending is None else residual.add_(pending)
    return norm(residual) if pending is None else norm.add(pending, residual)
