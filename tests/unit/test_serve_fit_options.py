"""With which priors the full fit beside an operator's answer is made, and what the page says of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distlfm.config import dump, load
from distlfm.data import read
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.model import ForceConfig
from distlfm.lfo import Examples, LoopConfig, Operator, OperatorConfig, Training, TrainSettings, finish
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms.priors import LogNormal, Uniform
from distlfm.runs.settings import FitConfig, GenerateConfig
from distlfm.serve import fits as options_module
from distlfm.serve.answers import Shown
from distlfm.serve.fit_child import INSTANCE, TASK
from distlfm.serve.fits import FitOptions, Fits, fit_options
from distlfm.store import Store
from distlfm.verbs.generate import generate
from tests.support.query_factories import LINE, field, fresh_genes, genes, operator_of
from tests.support.serve_client import first_answer, served

PROJECT = Path(__file__).resolve().parents[2]
GENES, FIELD = (PROJECT / "configs" / "generate" / name for name in ("transcription.yaml", "reaction_diffusion.yaml"))
SMALL = TrainSettings(operator=OperatorConfig(layers=1, width=8, modes=4), loop=LoopConfig(epochs=1, batch=8))


def options_of(operator: Operator, path: Path | None = None) -> FitOptions:
    found = fit_options(path, operator)
    assert isinstance(found, FitOptions), found
    return found


def store_of(folder: Path, name: str, *settings: str) -> Store:
    content = [*LINE[:2], "instances=12", f"run.dir={folder / name}", "run.executor=serial", *settings]
    return generate(GENES, content)


def trained(stores: list[Store], start: Operator | None = None) -> Operator:
    examples = Examples(stores, None if start is None else start.schema)
    training = Training(SMALL, examples.schema, examples, start=start)
    training.run()
    return finish(training)


def other_priors(operator: Operator, *priors: dict[str, Any] | None) -> Operator:
    """The operator as if it had learned from other data."""
    (own,) = operator.training["priors"]
    operator.training = {**operator.training, "priors": [{**own, **one} if one else {} for one in priors]}
    return operator


@pytest.mark.parametrize(("made", "config"), [(genes, GENES), (field, FIELD)])
def test_without_a_config_the_fit_has_equation_kernel_and_priors_of_what_the_operator_learned_from(
    made: Any, config: Path
) -> None:
    drawn = load(GenerateConfig, config)
    found = options_of(operator_of(made()[0]))
    assert found.config.mechanism == drawn.mechanism
    assert found.config.force == drawn.force
    assert found.config.likelihood == drawn.likelihood
    assert found.config.run.dir is None
    assert found.how == options_module.LEARNED


def test_the_priors_of_the_fit_are_told_one_by_one() -> None:
    assert options_of(operator_of(genes()[0])).sentences == (
        "Parameters: basal uniform (0 to 0.25), sensitivity uniform (0.3 to 2.5), sensitivity[output_0] = 1, "
        "decay uniform (0.2 to 0.7).",
        "force: rbf kernel; variance uniform (0.1 to 4), lengthscale uniform (0.7 to 3).",
        "Noise: lognormal (median 0.01, spread 0.5), one for all outputs.",
    )


def test_a_checkpoint_that_kept_no_priors_opens_and_the_page_says_that_the_fit_has_default_ones(tmp_path: Path) -> None:
    operator = operator_of(genes()[0])
    operator.training = {key: value for key, value in operator.training.items() if key != "priors"}
    operator.save(tmp_path / "old.pt")
    found = options_of(Operator.load(tmp_path / "old.pt"))
    assert found.config.mechanism == dict(operator.schema.mechanism)
    assert found.config.force == ForceConfig()
    assert found.sentences[0] == options_module.UNKNOWN
    assert "lengthscale lognormal (median 1, spread 1)" in found.sentences[2]
    with served(tmp_path / "session", checkpoint=str(tmp_path / "old.pt")) as client:
        told = client.get("/api/about").json()
    assert told["fit"] == options_module.EQUATION
    assert told["fit_priors"] == list(found.sentences)


def test_an_operator_of_data_with_different_priors_says_that_the_fit_has_the_first(tmp_path: Path) -> None:
    wide = "force.priors.lengthscale={kind: lognormal, median: 4, spread: 0.3}"
    stores = [store_of(tmp_path, "a.zarr"), store_of(tmp_path, "b.zarr", "seed=1"), store_of(tmp_path, "c.zarr", wide)]
    alike, both = trained(stores[:2]), trained(stores[1:])
    assert len(alike.training["priors"]) == 1, "another seed is no other prior"
    found = options_of(both)
    assert found.sentences[0] == "The operator learned from data of 2 different priors. The fit has those of the first."
    assert found.config.force.priors["lengthscale"] == Uniform(low=0.7, high=3.0)
    later = trained(stores[2:], start=alike)
    assert options_of(later).sentences == found.sentences, "what it began with comes first"
    unsaid = trained(stores[:1], start=other_priors(alike, None))
    assert options_of(unsaid).sentences[0] == options_module.PARTLY


def test_noise_that_was_stated_for_the_training_data_is_known_to_the_fit_too(tmp_path: Path) -> None:
    shown = gene()
    found = options_of(other_priors(operator_of(genes()[0]), {"noise": 0.05}))
    assert found.sentences[-1] == "Noise: standard deviation 0.05, known."
    assert found.config.likelihood == LikelihoodConfig(noise="given")
    fitted, same = found.suited(shown.instance)
    assert same is found
    np.testing.assert_allclose(fitted.variance, 0.05**2)
    none = options_of(other_priors(operator_of(genes()[0]), {"noise": 0.0}))
    assert none.sentences[0] == options_module.NOISELESS
    assert none.suited(shown.instance) == (shown.instance, none)


def test_variances_that_this_patient_lacks_are_learned_and_that_is_told() -> None:
    given = {"kind": "gaussian", "noise": "given"}
    found = options_of(other_priors(operator_of(genes()[0]), {"likelihood": given}))
    assert found.sentences[-1] == "Noise: variances as given with the data."
    _, options = found.suited(gene().instance)
    assert options.config.likelihood.noise == "learned"
    assert options.sentences[0] == options_module.NO_VARIANCES
    assert options.sentences[-1] == "Noise: lognormal (median 0.1, spread 1)."


def test_a_config_of_the_same_equation_is_taken_and_one_of_another_is_refused(tmp_path: Path) -> None:
    operator, quick = operator_of(genes()[0]), InferenceConfig(method="preestimate")
    mine = tmp_path / "mine.yaml"
    mine.write_text(dump(FitConfig(mechanism={"kind": "transcription"}, inference=quick)))
    found = options_of(operator, mine)
    assert found.config.inference == quick
    assert found.how == "the settings of mine.yaml"
    assert found.sentences[0] == options_module.OTHERS
    same = load(GenerateConfig, GENES)
    mine.write_text(dump(FitConfig(mechanism=same.mechanism, force=same.force, likelihood=same.likelihood)))
    assert options_of(operator, mine).sentences == options_of(operator).sentences, "nothing to warn of"
    (tmp_path / "other.yaml").write_text(dump(FitConfig(mechanism={"kind": "lotka_volterra"})))
    with pytest.raises(UsageError, match="the mechanism 'lotka_volterra', and the operator of 'transcription'"):
        fit_options(tmp_path / "other.yaml", operator)


def test_an_operator_that_does_not_know_its_equation_says_what_to_do(tmp_path: Path) -> None:
    operator = operator_of(genes()[0])
    operator.schema = operator.schema.model_copy(update={"mechanism": {}})
    fits = Fits(tmp_path, fit_options(None, operator))
    assert fits.reason is not None
    assert "--fit CONFIG" in fits.reason
    with pytest.raises(UsageError, match="--fit CONFIG"):
        fits.start(gene())


@pytest.mark.parametrize("wrong", [{"force": {"kernel": {"kind": "magic"}}}, {"likelihood": 3}])
def test_priors_of_a_checkpoint_that_mean_nothing_here_are_no_reason_to_stop(wrong: dict[str, Any]) -> None:
    found = fit_options(None, other_priors(operator_of(genes()[0]), wrong))
    assert isinstance(found, str)
    assert "--fit CONFIG" in found


def test_the_fits_process_is_given_the_priors_that_its_report_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Idle:
        pid, stdin = 0, None

        def __init__(self, command: list[str], **_: Any) -> None:
            self.folder = Path(command[-1])

        def poll(self) -> int:
            return 0

    monkeypatch.setattr("distlfm.serve.fits.subprocess.Popen", Idle)
    operator = other_priors(operator_of(genes()[0]), {"noise": 0.05, "force": {"kernel": {"kind": "matern32"}}})
    fit = Fits(tmp_path, fit_options(None, operator)).start(gene())
    config = FitConfig.model_validate(json.loads((fit.folder / TASK).read_text())["config"])
    assert config.force.kernel.kind == "matern32"
    (instance,) = read(fit.folder / INSTANCE).instances
    np.testing.assert_allclose(instance.variance, 0.05**2)
    told = fit.about()["priors"]
    assert any("matern32 kernel; variance lognormal (median 1, spread 1)" in one for one in told)


def test_the_page_is_told_the_priors_before_a_fit_and_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(poll=lambda: None, pid=0, stdin=None, wait=lambda _: None)
    monkeypatch.setattr("distlfm.serve.fits.subprocess.Popen", lambda *_, **__: process)
    monkeypatch.setattr("distlfm.serve.fits.os.killpg", lambda *_: None)
    with served(tmp_path / "session") as client:
        about = client.get("/api/about").json()
        fit = client.post(f"/api/answers/{first_answer(client)['key']}/fit").json()
    assert about["fit"] == options_module.LEARNED
    assert about["fit_priors"] == fit["priors"]
    assert fit["priors"][1].startswith("force: rbf kernel; variance uniform (0.1 to 4)")


def test_every_kind_of_prior_has_words() -> None:
    operator = other_priors(
        operator_of(genes()[0]),
        {
            "force": ForceConfig.model_validate(
                {
                    "kernel": {"kind": "product", "parts": [{"kind": "rbf"}, {"kind": "periodic"}]},
                    "priors": {"period_length": {"kind": "halfnormal", "scale": 24}},
                    "fixed": {"variance": 2.0},
                }
            ).model_dump(mode="json"),
            "likelihood": LikelihoodConfig(relative=LogNormal(median=0.1, spread=0.5), floor=0.003).model_dump(
                mode="json"
            ),
        },
    )
    _, force, noise = options_of(operator).sentences
    assert "the product of (rbf kernel) and (periodic kernel)" in force
    assert "period_length halfnormal (scale 24)" in force
    assert "variance = 2" in force
    assert noise == (
        "Noise: lognormal (median 0.1, spread 1), relative noise lognormal (median 0.1, spread 0.5), never below 0.003."
    )


def gene() -> Shown:
    operator, instance = operator_of(genes()[0]), Store.open(fresh_genes()).instances(0, 1)[0]
    return Shown("answer", "source", instance, operator(instance.blind()), operator.schema, 0.01)
