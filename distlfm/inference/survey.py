"""What a fleet's settings follow from, gathered block by block, so that no more than a block is ever in memory.

Inducing points are those of the instance that needs most, and a field's mesh holds all positions: so cutting the fleet
into other batches changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from distlfm.inference.field.settings import Extent, extent_of, settle_extent
from distlfm.inference.fit import AutoSeries, InferenceConfig, method_of
from distlfm.inference.model import Model
from distlfm.inference.observations import collate
from distlfm.inference.series.forward import SolvedMethod, choose_num_inducing
from distlfm.instance import Instance


@dataclass(frozen=True)
class Survey:
    """samples: most observation points of an instance; starts, ends: earliest and latest first and last time.

    gap: between two different times, the median of an instance, and of those the shortest. span: from first to last,
    the longest.
    variance: whether any instance comes with its noise. inducing: points that an ODE that is solved needs most.
    extent: of fields.
    """

    count: int
    samples: int
    starts: tuple[float, float]
    ends: tuple[float, float]
    variance: bool
    gap: float
    span: float
    inducing: int = 0
    extent: Extent | None = None

    def joined(self, other: Survey) -> Survey:
        """The survey of both."""
        extents = [one for one in (self.extent, other.extent) if one is not None]
        return Survey(
            count=self.count + other.count,
            samples=max(self.samples, other.samples),
            starts=(min(self.starts[0], other.starts[0]), max(self.starts[1], other.starts[1])),
            ends=(min(self.ends[0], other.ends[0]), max(self.ends[1], other.ends[1])),
            variance=self.variance or other.variance,
            gap=min(self.gap, other.gap),
            span=max(self.span, other.span),
            inducing=max(self.inducing, other.inducing),
            extent=extents[0].joined(extents[1]) if len(extents) == 2 else None,
        )

    @property
    def shared(self) -> bool:
        """Whether all instances are observed from the same time to the same time."""
        return self.starts[0] == self.starts[1] and self.ends[0] == self.ends[1]


def survey(model: Model, whole: Sequence[Instance], chosen: Sequence[Instance], options: InferenceConfig) -> Survey:
    """The survey of some instances. chosen: the observations that a fit may see.

    Where and when a field was looked at is known of held-back points too: the domain must hold them.
    """
    first, last = [one.times[0] for one in chosen], [one.times[-1] for one in chosen]
    found = Survey(
        count=len(whole),
        samples=max(len(one.times) for one in chosen),
        starts=(float(min(first)), float(max(first))),
        ends=(float(min(last)), float(max(last))),
        variance=any(one.variance is not None for one in chosen),
        gap=min(float(np.median(np.diff(np.unique(one.times)))) for one in chosen),
        span=float(max(one.times[-1] - one.times[0] for one in chosen)),
    )
    if model.is_field:
        return replace(found, extent=extent_of(model, whole))
    if options.variational.num_inducing or not _is_solved(model, found, options):
        return found
    unlike = {(one.times.tobytes(), one.mask.any(0).tobytes()): one for one in chosen}
    # One with an output that the mechanism does not know is refused alone, when it is fitted.
    each = [collate([one.blind()], one.outputs) for one in unlike.values()]
    return replace(found, inducing=max(choose_num_inducing(model, one) for one in each))


def _is_solved(model: Model, found: Survey, options: InferenceConfig) -> bool:
    """Whether inducing points are shared by a fleet; methods that choose for each instance need none."""
    method = method_of(model, options.method)
    if issubclass(method, AutoSeries):
        if model.linearity.changing:  # some instances may turn out to need the solver
            return True
        method = method.choose(model, found.samples)
    return issubclass(method, SolvedMethod)


def settled(model: Model, found: Survey, options: InferenceConfig) -> InferenceConfig:
    """Options with everything settled that a batch would otherwise take from its own instances."""
    if model.is_field:
        assert found.extent is not None
        settings = options.settled or settle_extent(model, found.extent, options.field)
        return options.model_copy(update={"settled": settings})
    return options.changed("variational", num_inducing=options.variational.num_inducing or found.inducing or None)


def settle_fleet(model: Model, instances: Sequence[Instance], options: InferenceConfig) -> InferenceConfig:
    """Options settled for a fleet that is in memory."""
    return settled(model, survey(model, instances, instances, options), options)
