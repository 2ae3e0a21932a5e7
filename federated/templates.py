"""What a new site finds in its folder: a policy and settings, with a line about each choice."""

from __future__ import annotations

POLICY = """\
# What this site allows. It is read for every message; nobody else can change it.
site: {site}
# The version of distlfm that all sites agreed on.
package: {package}
# Kinds of message that are answered. query.* are the federation's questions; take the line away to answer none.
allowed:
  - train
  - evaluate
  - query.*
# Fewest sites in a sum, at its start and at its end: nobody learns a sum over fewer.
min_cohort: 3
# Fewest patients used for an answer: those in the batches of a round's steps, those that choose for its figures.
min_examples: 5
# Kinds of message that all sites answer together or not at all, so that no two answers differ by one site.
fixed_cohort:
  - evaluate
  - query
# Weights that a round may tune and leave here, by name or pattern such as second.estimate.*; none by default.
local: []
# Longest update that leaves (its norm), and noise on it in units of that; null: as it is.
clip: null
noise_multiplier: 0.0
# Privacy budget of this site's patients (differential privacy); null: masking alone.
epsilon: null
delta: 1.0e-5
# Limits of a day (UTC). Figures of a model count as a question: a programme of five rounds asks for them six times.
queries_a_day: 100
bytes_a_day: 2000000000
# Signing keys of all sites, written by `distlfm federated provision pin`. Keep this the last entry.
peers: {{}}
"""

SITE = """\
# What this site works on. No message changes it.
name: {site}
# Either the content of a config of `distlfm fit`, whose data section says where the patients' records are:
#fit:
#  verb: fit
#  data:
#    path: /data/patients.csv
#    columns: {{instance: patient, time: time_min, values: glucose_mg_dl}}
#    window: 1440
#  mechanism: {{kind: glucose}}  # with the priors that all sites agreed on
# or pairs that were made before:
#store: /data/pairs.zarr
# Share of the patients that are never learned from, but measure the model, and of those that choose between models:
#test: 0.3
#choose: 0.2
# How the noise of differential privacy is made; the unit is a patient with all windows. epsilon and delta of
# policy.yaml win over those here:
#privacy: {{epsilon: 4.0, delta: 1.0e-5, noise: 3.85, sample: 0.5}}
"""


def policy_text(site: str, package: str) -> str:
    """policy.yaml of a new site."""
    return POLICY.format(site=site, package=package)


def site_text(site: str) -> str:
    """site.yaml of a new site."""
    return SITE.format(site=site)
