"""Whether a force of one sign moves the outputs both ways, and how strongly it moves them if it does.

What inducing points leave open is bounded by the answer to its deviation where no answer to a force is negative. A
force under a derivative pushes one side up and the other down: there the answers of single nodes are taken by size.

Shapes: `A` rows of unknowns, `N` steps, `J` nodes, `G` groups of them, `O` places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distlfm.gp.inducing import place_on_points
from distlfm.inference.model import Model
from distlfm.mechanisms.parameters import Values
from distlfm.solvers.field.engine import Engine, TimeGrid

OPPOSED = 0.1
"""Share of the answers against the others' sign above which a force counts as moving outputs both ways.

Less than that comes of the time steps' scheme too."""

PROBED = (0.3, 0.5, 0.7)
"""Where along the domain's diagonal the answers are looked at."""

FAR = 1.5
"""How far from the prior's middle, in units of its deviation, coefficients are tried too."""

CHUNK = 2_000_000
"""Numbers of a force for which answers are computed at once."""

MOST_GROUPS = 250
"""Nodes of larger meshes are taken in so many groups of neighbours, whose answers are sized as one."""


@torch.no_grad()
def moves_both_ways(model: Model, engine: Engine, nodes: Tensor, grid: TimeGrid) -> bool:
    """Whether it does at the middle of the coefficients' priors, or on either side of it; nodes: [J, d]."""
    low, high = nodes.amin(0), nodes.amax(0)
    near = [int((nodes - (low + share * (high - low))).square().sum(-1).argmin()) for share in PROBED]
    index = torch.tensor([list(range(len(near))), near])
    observe = torch.sparse_coo_tensor(
        index, torch.ones(len(near), dtype=torch.float64), (len(near), len(nodes)), check_invariants=True
    ).coalesce()
    theta = _samples(model, engine.names)
    none = torch.zeros(1, len(near), grid.steps + 1, len(nodes), dtype=torch.float64)
    none = none.expand(len(theta), -1, -1, -1)
    last = torch.zeros(len(theta), len(near), grid.steps + 1, len(near), dtype=torch.float64)
    last[:, :, -1] = torch.eye(len(near), dtype=torch.float64)
    for some in theta.split(max(1, CHUNK // none[0].numel())):
        count = len(some)
        _, saved = engine.forward(some, none[:count, :, 0], none[:count], grid, observe, driven=False, keep=True)
        answers = engine.adjoint(saved, last[:count]).force.flatten(2)
        up, down = answers.clamp_min(0.0).sum(-1), -answers.clamp_max(0.0).sum(-1)
        if bool((torch.minimum(up, down) > OPPOSED * torch.maximum(up, down)).any()):
            return True
    return False


def groups_of(nodes: Tensor) -> Tensor:
    """Which of at most MOST_GROUPS groups of neighbours each node [J, d] is in, [J]."""
    if len(nodes) <= MOST_GROUPS:
        return torch.arange(len(nodes))
    everywhere = torch.ones(1, len(nodes), dtype=torch.bool)
    centres = place_on_points(nodes.unsqueeze(0), everywhere, num_inducing=MOST_GROUPS)[0]
    nearest = torch.cat([torch.cdist(some, centres).argmin(-1) for some in nodes.split(10_000)])
    found: Tensor = torch.unique(nearest, return_inverse=True)[1]
    return found


def pulses_of(groups: Tensor) -> Tensor:
    """A pulse [G, 1, J] of one on each group of nodes."""
    count = int(groups.max()) + 1
    return torch.nn.functional.one_hot(groups, count).mT.to(torch.float64).unsqueeze(1)


def largest_in(groups: Tensor, values: Tensor) -> Tensor:
    """The largest of values [..., J] in each group, [..., G]."""
    found = values.new_zeros(*values.shape[:-1], int(groups.max()) + 1)
    return found.scatter_reduce(-1, groups.expand_as(values), values, "amax", include_self=False)


def _samples(model: Model, names: tuple[str, ...]) -> Tensor:
    """Coefficients [A, k]: the prior's middle, and each unknown one above and below it."""
    space = model.space
    middle = torch.zeros(1, space.num_free, dtype=torch.float64)
    found = [middle]
    for name in names:
        if space[name].free:
            step = torch.zeros_like(middle)
            step[:, space.slice_of(name)] = FAR
            found += [middle + step, middle - step]
    values: Values = space.unpack(torch.cat(found))
    return torch.cat([values[name] for name in names], -1)
