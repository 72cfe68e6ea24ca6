"""Laws that a search found, or that stand beside such, save something on a program: without the law, the program takes
longer by prediction. The programs of the corpus were written with the laws in view; the functions of JAX were not."""

from __future__ import annotations

import pytest
from sampling import sampled

from benchmarks.corpus.fired import corpus_rules
from benchmarks.discovery_gains import of_corpus, of_functions
from benchmarks.mined import LAWS, Found, known_rules
from relax_eg.driver.laws.ranking import LEAST_SAVING, Optimize
from relax_eg.rules import Rule, RuleSet, orders, traced
from relax_eg.rules.verify_formal.prove import prove_rule

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
    "slope_of_log_of_sum_in_second": "log_cosh_regression",
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
# The law, and the function of JAX (`benchmarks/functions`) on which it saves. "approximate": with laws of that class.
SAVES_ON_FUNCTIONS = {
    "tanh_of_softplus": "mish",
    "slope_of_softplus": "softplus, gradient",
    "slope_of_log_of_sum": "logaddexp, gradient",
    "square_of_inverse_log_of_sum": "logistic.pdf",
    "exponentials_to_both_sides": "laplace.cdf",
    "exponential_of_log1p": "cauchy.pdf",
    "exponential_of_log_and_more": "gamma.cdf, gradient",
    "density_of_log": "gamma.pdf",
    "slope_of_limit": "celu, gradient",
    "scattered_alone": "percentile, gradient",
    "scattered_column": "quantile, gradient",
    "scattered_elements_subtracted": "partition, gradient",
    "scattered_on_diagonal_by_add": "diag, gradient",
    "scattered_on_diagonal_by_set": "svd, gradient",
    "solve_upper_transposed": "scipy.cho_solve",
    "count_as_float": "nanvar",
    "counts_at_once": "slogdet",
    "places_of_true_values": "nonzero",
    "sum_of_centred_numbers": "nanvar, gradient",
    "sort_that_shows_what_is_missing": "median",
    "sort_that_shows_what_rows_miss": "quantile",
    "sort_of_one_int32": "insert",
    "sort_of_filled_rows": "median",
}
# Those of them that are not proved, but tested.
NOT_PROVED = {"scattered_on_diagonal_by_set", "solve_upper_transposed", "places_of_true_values"}
FUNCTIONS = of_functions(frozenset(SAVES_ON_FUNCTIONS.values()))
PROGRAMS = of_corpus()


def saved(law: str, program: Optimize) -> float:
    """The share of a program's predicted time that a law saves."""
    rules = corpus_rules()
    assert law in {r.name for r in rules}
    without = RuleSet("without", [r for r in rules if r.name != law], rules.schemas)
    more, less = (program(r).report.after.seconds for r in (without, rules))
    return 1 - less / more


@pytest.mark.parametrize("law", [n for n in SAVES_ON_FUNCTIONS if n not in NOT_PROVED])
def test_a_law_that_saves_on_a_function_is_proved(law: str) -> None:
    found = prove_rule(next(r for r in (*traced, *orders) if r.name == law))
    assert found.status == "proved", found.reason


def test_twenty_laws_that_save_on_functions_are_proved() -> None:
    assert len(SAVES_ON_FUNCTIONS.keys() - NOT_PROVED) >= 20


@pytest.mark.parametrize("law", sampled(list(SAVES), 5))
def test_a_law_saves_on_a_program(law: str) -> None:
    assert saved(law, PROGRAMS[SAVES[law]]) > LEAST_SAVING


@pytest.mark.parametrize("law", sampled(list(SAVES_ON_FUNCTIONS), 5))
def test_a_law_saves_on_a_function_that_was_not_written_for_it(law: str) -> None:
    assert saved(law, FUNCTIONS[SAVES_ON_FUNCTIONS[law]]) > LEAST_SAVING


def test_a_law_does_not_hide_what_another_saves() -> None:
    """The law of two choices makes another program cheapest, in which no schema makes the slope that the other law is
    about."""
    found = {r.name: r for r in Found.read(LAWS).rules()}
    slope, choices = found["add_of_multiply_and_divide"], found["divide_of_where_and_where"]
    programs = of_functions(["celu, gradient"])

    def seconds(*laws: Rule) -> float:
        return programs["celu, gradient"](known_rules() + RuleSet("laws", laws)).report.after.seconds

    with_slope = seconds(slope)
    assert with_slope < seconds(choices)
    assert seconds(slope, choices) <= with_slope
