"""What a kernel's parameters are measured in, from its force and from what the force depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlfm.dimension import Dimension
from distlfm.gp.expression import Periodic, Scaled, Stationary
from distlfm.gp.kernels import FunctionalKernel


def kernel_dimension(
    kernel: FunctionalKernel,
    name: str,
    labels: Sequence[str],
    force: Dimension | None,
    inputs: Sequence[Dimension | None],
) -> Dimension | Mapping[str, Dimension] | None:
    """Of one parameter; None where it is not known, as for sums and products, whose parts share one scale.

    force: of the force. inputs: of each number that it depends on, time first.
    """
    whole = kernel.expression
    if not isinstance(whole, Scaled) or not isinstance(whole.part, Stationary | Periodic):
        return None
    part = whole.part
    if name == whole.scale.name:
        return None if force is None else force**2
    along = part.lengthscale if isinstance(part, Stationary) else part.period
    if name != along.name:
        return None
    seen = [inputs[i] for i in (range(len(inputs)) if part.dims is None else part.dims)]
    if len(labels) == len(seen):
        return {label: one for label, one in zip(labels, seen, strict=True) if one is not None}
    return seen[0] if len(set(seen)) == 1 else None
