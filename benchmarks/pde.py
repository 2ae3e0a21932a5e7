"""Fields: gradients, orders, the toy field, knirps, and speed against dolfin-adjoint, each beside its goal."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import pde_mesh, pde_tape
from benchmarks.goals import at_least, at_most, between
from distlfm.config import load
from distlfm.equations.base import MeshConfig, ProblemSpec
from distlfm.fleets.fit_job import model_of
from distlfm.fleets.sources import read_instances
from distlfm.gp.kernels import separate
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.points import place_inducing
from distlfm.inference.findings.residuals import structure
from distlfm.inference.result import FitResult
from distlfm.runs.settings import FitConfig
from distlfm.solvers.fem.group.client import PartitionedSolver
from distlfm.solvers.fem.group.owner import Group
from distlfm.solvers.field.engine import Inputs, TimeGrid, solve
from distlfm.solvers.field.meshed import Meshed, meshed
from distlfm.solvers.field.sparse import to_csr
from distlfm.verbs.fit import fit

CONFIGS = Path("configs/fit")
KNOWN = ["mechanism.fixed.decay=0.1", "mechanism.fixed.diffusion=0.01"]
TRUE = {"decay": 0.1, "diffusion": 0.01}
THETA = {"sensitivity": 1.0, "decay": 0.1, "diffusion": 0.01}
Figures = dict[str, Any]


def run(quick: bool = False) -> dict[str, Any]:
    seeds = range(1 if quick else 5)
    figures: Figures = {}
    more: dict[str, Any] = {}
    for part in (gradients, convergence, noisy, released, knirps, speed):
        found, details = part(seeds)
        figures |= found
        more[part.__name__] = details
    mesh = pde_mesh.run(quick)
    figures |= mesh.pop("figures")
    return {"figures": figures, **more, "large meshes": mesh}


def line_spec(cells: int) -> ProblemSpec:
    """The toy's problem with so many cells."""
    config = load(FitConfig, CONFIGS / "reaction_diffusion_noisy.yaml")
    model = model_of(config, read_instances(config.data).instances)
    return model.field.problem(MeshConfig(kind="interval", lower=(0.0,), upper=(1.0,), size=1 / cells))


def opened(spec: ProblemSpec, solver: Any = "auto") -> Meshed:
    return meshed(spec.model_dump_json(), solver, 1, "auto")


def gradients(seeds: range) -> tuple[Figures, Any]:
    """Every engine's gradients against dolfin-adjoint's own, and the partitioned ones on two and three ranks."""
    del seeds
    spec, grid = line_spec(40), TimeGrid(0.0, 1 / 40, 40)
    field = opened(spec)
    stream = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    nodes = len(field.nodes)
    initial, force, observe = (
        normal(1, 1, nodes),
        normal(1, 1, 41, nodes),
        field.observe(np.linspace(0, 1, 23)[:, None]),
    )
    weights = normal(1, 1, 41, 23)
    theta = torch.tensor([[THETA[name] for name in field.names]], dtype=torch.float64)
    with pde_tape.start() as group:
        _, oracle = pde_tape.trajectory(
            group,
            spec,
            THETA,
            initial[0, 0].numpy(),
            force[0, 0].numpy(),
            weights[0, 0].numpy(),
            to_csr(observe),
            grid.dt,
        )
    figures: Figures = {}
    for kind in ("dense", "sparse", "petsc"):
        engine = opened(spec, kind).engine
        _, saved = engine.forward(Inputs(theta, initial, force), grid, observe, driven=True, keep=True)
        found = engine.adjoint(saved, weights)
        pairs = ((found.theta[0], "theta"), (found.initial[0, 0], "initial"), (found.force[0, 0], "force"))
        worst = max(_relative(one.numpy(), np.asarray(oracle[name])) for one, name in pairs)
        figures[f"gradient, {kind} against dolfin-adjoint, relative"] = at_most(worst, 1e-8)
    figures["Taylor test, order"] = at_least(_taylor(field, theta, initial, force, weights, grid, observe), 1.9)
    square = pde_mesh.reaction_diffusion(24)
    serial = _partitioned(square, 1)
    for ranks in (2, 3):
        worst = max(_relative(a, b) for a, b in zip(_partitioned(square, ranks), serial, strict=True))
        figures[f"gradient, {ranks} ranks against one, relative"] = at_most(worst, 1e-8)
    return figures, None


def _relative(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


def _partitioned(spec: ProblemSpec, ranks: int) -> list[np.ndarray[Any, Any]]:
    with Group.start(ranks) as group:
        solver = PartitionedSolver(group, spec)
        random = np.random.default_rng(0)
        force = random.normal(size=(2, 11, solver.num_nodes))
        observe = pde_mesh.some_nodes(solver.num_nodes)
        observed, run_id = solver.forward(THETA, None, force, 0.02, 10, observe)
        found = solver.adjoint(run_id, random.normal(size=observed.shape))
        return [observed, np.array(list(found.theta.values())), found.initial, found.force]


def _taylor(
    field: Meshed, theta: Tensor, initial: Tensor, force: Tensor, weights: Tensor, grid: TimeGrid, observe: Tensor
) -> float:
    """The order at which a first-order prediction errs, over all inputs together."""
    stream = torch.Generator().manual_seed(1)
    start = [theta, initial, force]
    steps = [0.05 * x.abs().mean() * torch.randn(x.shape, generator=stream, dtype=torch.float64) for x in start]

    def value(size: float) -> Tensor:
        moved = [(x + size * step).requires_grad_() for x, step in zip(start, steps, strict=True)]
        observed = solve(field.engine, moved[0], moved[1], moved[2], grid, observe)
        # Squared, so that the second order does not vanish in the force and the initial state.
        total: Tensor = (weights * observed.square()).sum()
        slopes = torch.autograd.grad(total, moved)
        slope = sum((a * b).sum() for a, b in zip(slopes, steps, strict=True))
        return torch.stack([total.detach(), torch.as_tensor(slope)])

    base = value(0.0)
    errors = [float((value(size)[0] - base[0] - size * base[1]).abs()) for size in (1.0, 0.5, 0.25)]
    return min(math.log2(a / b) for a, b in itertools.pairwise(errors))


def convergence(seeds: range) -> tuple[Figures, Any]:
    """y = sin(πx) sin(3t) with the force that makes it the solution, on FEniCS's own operators."""
    del seeds

    def error(cells: int, steps: int) -> float:
        field, grid = opened(line_spec(cells), "sparse"), TimeGrid(0.0, 1 / steps, steps)
        shape = torch.sin(math.pi * torch.from_numpy(field.nodes[:, 0]))
        wave, slope = torch.sin(3 * grid.times), 3 * torch.cos(3 * grid.times)
        force = (slope + (0.1 + 0.01 * math.pi**2) * wave)[:, None] * shape
        theta = torch.tensor([[THETA[name] for name in field.names]], dtype=torch.float64)
        start = torch.zeros(1, 1, cells + 1, dtype=torch.float64)
        found = solve(field.engine, theta, start, force[None, None], grid, field.observe(field.nodes))
        return float((found[0, 0] - wave[:, None] * shape).abs().max())

    space = [error(cells, 640) for cells in (8, 16, 32)]
    finest = error(512, 512)
    times = [error(512, steps) - finest for steps in (8, 16, 32)]
    orders = {name: math.log2(row[1] / row[2]) for name, row in (("space", space), ("time", times))}
    return {f"order in {name}": at_least(order, 1.9) for name, order in orders.items()}, None


def fitted(config: str, *overrides: str) -> tuple[FitResult, dict[str, Any], float]:
    start = time.perf_counter()
    done = fit(load(FitConfig, CONFIGS / f"{config}.yaml", overrides))
    return done.results[0], done.figures[0], time.perf_counter() - start


def noisy(seeds: range) -> tuple[Figures, Any]:
    """The toy field with noise, 30 % of the points, rates known and learned."""
    rows: dict[str, list[dict[str, Any]]] = {"known": [], "learned": []}
    for name, overrides in (("known", KNOWN), ("learned", [])):
        for seed in seeds:
            result, figures, _ = fitted("reaction_diffusion_noisy", f"data.split_seed={seed}", *overrides)
            inside = {
                one.name: one.lower95 <= TRUE[one.name] <= one.upper95 for one in result.estimates if one.name in TRUE
            }
            rows[name].append({**figures, "inside": inside, "undetermined": [str(x) for x in result.undetermined]})

    def each(name: str, figure: str) -> list[float]:
        return [row[figure] for row in rows[name]]

    found: Figures = {}
    for name, goal in (("known", 0.98), ("learned", 0.95)):
        found[f"noisy toy, rates {name}: worst output Q² on the rest"] = at_least(min(each(name, "output_q2")), 0.998)
        found[f"noisy toy, rates {name}: worst latent Q²"] = at_least(min(each(name, "latent_q2")), goal)
        mean = float(np.mean(each(name, "latent_coverage_68")))
        found[f"noisy toy, rates {name}: 68 % coverage of the force, mean"] = between(mean, 0.60, 0.76)
    for name in TRUE:
        count = sum(row["inside"][name] for row in rows["learned"])
        share = count / len(rows["learned"])
        found[f"noisy toy: share of 95 % intervals of {name} that hold the truth"] = at_least(share, 0.8)
    return found, rows


def released(seeds: range) -> tuple[Figures, Any]:
    """The released toy, whose output is not the equation's solution."""
    rows = []
    for seed in seeds:
        result, figures, _ = fitted("reaction_diffusion_toy", f"data.split_seed={seed}")
        noticed = structure(result)
        rows.append({**figures, "flagged": noticed is not None and noticed.flagged})
    share = float(np.mean([row["flagged"] for row in rows]))
    return {
        "released toy, rates known: worst latent Q²": at_least(min(row["latent_q2"] for row in rows), 0.90),
        "released toy: share of fits whose residual structure is flagged": at_least(share, 1.0),
    }, rows


def knirps(seeds: range) -> tuple[Figures, Any]:
    """Protein and mRNA of knirps, 30 % of the points."""
    rows = []
    for seed in seeds:
        result, figures, _ = fitted("kni", f"data.split_seed={seed}")
        truth = result.instance.truth
        assert truth is not None
        assert truth.force is not None
        mean, true = result.predict(truth.times, truth.positions).force.mean[0], truth.force[0]
        scale = float(mean @ true / (mean @ mean))
        spread = float(((true - true.mean()) ** 2).sum())
        scaled = 1 - float(((scale * mean - true) ** 2).sum()) / spread
        estimates = {one.name: [one.mean, one.lower95, one.upper95] for one in result.estimates}
        rows.append({**figures, "scaled_q2": scaled, "scale": scale, "estimates": estimates})
    coverage = float(np.mean([row["output_coverage_68"] for row in rows]))
    return {
        "kni: worst protein Q² on the rest": at_least(min(row["output_q2"] for row in rows), 0.99),
        "kni: mean mRNA Q² after one scale factor": at_least(float(np.mean([row["scaled_q2"] for row in rows])), 0.80),
        "kni: 68 % coverage of the protein, mean": between(coverage, 0.63, 0.73),
    }, rows


def speed(seeds: range) -> tuple[Figures, Any]:
    """One step of optimisation on the toy with 20 draws, against a tape a draw; and a whole fit."""
    del seeds
    spec, grid, draws = line_spec(40), TimeGrid(0.0, 1 / 40, 40), 20
    ours = _step_seconds(grid, draws)
    field = opened(spec)
    observe = to_csr(field.observe(np.linspace(0, 1, 41)[:, None]))
    random = np.random.default_rng(0)
    with pde_tape.start() as group:
        found = []
        for _ in range(3):  # the first compiles forms
            seconds, _ = pde_tape.trajectory(
                group,
                spec,
                THETA,
                np.zeros(41),
                random.normal(size=(41, 41)),
                random.normal(size=(41, 41)),
                observe,
                grid.dt,
            )
            found.append(float(seconds["forward"]) + float(seconds["adjoint"]))
    tape = min(found[1:])
    _, _, whole = fitted("reaction_diffusion_noisy")
    figures = {
        "a step on the toy, 20 draws: times faster than a dolfin-adjoint tape a draw": at_least(
            draws * tape / ours, 500
        ),
        "a whole fit of the toy, s": at_most(whole, 15.0),
    }
    return figures, {"ours, s a step": ours, "dolfin-adjoint, s a draw": tape}


def _step_seconds(grid: TimeGrid, draws: int, repeats: int = 20) -> float:
    """Processor seconds of a step: draws of the force from q, their solutions, and the gradient to q and all else."""
    config = load(FitConfig, CONFIGS / "reaction_diffusion_noisy.yaml")
    model = model_of(config, read_instances(config.data).instances)
    field = opened(line_spec(40))
    fields = FieldMap(model, field, grid, place_inducing(field, grid, 12, 12))
    parts = separate(model.kernels[0])
    assert parts is not None
    size = 12 * 12
    stream = torch.Generator().manual_seed(0)
    mean = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    root = (0.1 * torch.eye(size, dtype=torch.float64)).requires_grad_()
    z = torch.zeros(1, model.space.num_free, dtype=torch.float64, requires_grad=True)
    observe = field.observe(np.linspace(0, 1, 41)[:, None])
    data = torch.randn(41, 41, generator=stream, dtype=torch.float64)
    times = grid.times.repeat_interleave(len(field.nodes)).unsqueeze(-1)
    points = torch.cat([times, fields.nodes.repeat(len(grid.times), 1)], -1).unsqueeze(0)
    start = 0.0
    for i in range(repeats + 2):
        if i == 2:
            start = time.process_time()
        values = model.space.unpack(z)
        columns, _ = fields.force_columns(values, points)
        w = mean + torch.randn(draws, size, generator=stream, dtype=torch.float64) @ root.tril().mT
        force = (columns[0] @ w.mT).mT.reshape(1, draws, len(grid.times), len(field.nodes))
        initial = torch.zeros(1, draws, len(field.nodes), dtype=torch.float64)
        observed = solve(field.engine, fields.theta(values), initial, force, grid, observe)
        noise = values["noise"].squeeze()
        loss = ((observed - data).square() / noise**2).sum() / draws + noise.log()
        loss.backward()
    return (time.process_time() - start) / repeats
