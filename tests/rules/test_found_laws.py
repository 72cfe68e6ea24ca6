"""Laws that a search found, or that stand beside such, save something on a program of the corpus: without the law, the
program takes longer by prediction."""

from __future__ import annotations

import pytest
from sampling import sampled

from benchmarks.corpus.fired import corpus_rules
from benchmarks.discovery_gains import of_corpus
from relax_eg.driver.ranking import LEAST_SAVING
from relax_eg.rules import RuleSet

# The law, and the program on which it saves.
SAVES = {
    "running_from_the_end": "rewards_to_go",
    "last_of_running": "range_of_a_walk",
    "extreme_of_running_extreme": "range_of_a_walk",
    "running_extreme_twice": "high_water_marks",
    "negated_running_extreme": "support_levels",
    "sum_of_running_sum": "gini_coefficients",
    "running_product_of_exponentials": "survival_curve",
    "exponential_of_running_sum_of_logs": "sequence_probability",
    "exponential_of_sum_of_logs": "sequence_probability",
    "total_without_what_was": "still_to_come",
    "product_of_absolute_values": "volumes_of_boxes",
    "extremes_at_once": "louder_channel",
    "place_in_one_hot": "accuracy_of_encoded_labels",
    "product_of_turned": "correlated_backwards",
    "sort_of_filled_rows": "median_from_the_top",
    "sort_of_flipped": "median_from_the_top",
    "running_maximum_of_sorted": "quantiles_that_do_not_cross",
    "greatest_of_the_greatest": "behind_the_beam",
    "sum_of_spectra": "spectrum_of_a_mix",
    "sum_of_inverse_transforms": "two_bands",
    "transformed_and_back": "filter_that_is_off",
}
PROGRAMS = of_corpus()


@pytest.mark.parametrize("law", sampled(list(SAVES), 5))
def test_a_law_saves_on_a_program(law: str) -> None:
    rules = corpus_rules()
    assert law in {r.name for r in rules}
    without = RuleSet("without", [r for r in rules if r.name != law], rules.schemas)
    more, less = (PROGRAMS[SAVES[law]](r).report.after.seconds for r in (without, rules))
    assert less < (1 - LEAST_SAVING) * more
