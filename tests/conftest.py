"""Fixtures of all tests. Tests do not use the user's cache; tests of the cache turn it on in a folder of their own."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from compiling import QUICKLY
from hypothesis import HealthCheck, settings
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

os.environ["RELAX_EG_CACHE"] = "0"
# Tests look at the chosen program; those of `settle` ask for it.
os.environ["RELAX_EG_SETTLE"] = "off"
# Prices of tests are those of the profile that ships; tests of calibration ask for it.
os.environ["RELAX_EG_CALIBRATE"] = "off"
# With the extra `cuda` and without cuDNN, JAX prints a traceback at its first look for devices unless it is told this.
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"

# XLA takes a ninth of the time for a program with these options. Tests marked `xla_defaults`, which look at what XLA
# makes of a program, get XLA's own; where RELAX_EG_XLA is "default", all tests do. JAX has no public setting for this.
_compile_options = compiler.get_compile_options
_quickly = False


def _options_of_tests(*args: Any, env_options_overrides: dict[str, Any] | None = None, **more: Any) -> Any:
    given = env_options_overrides or {}
    return _compile_options(*args, env_options_overrides={**QUICKLY, **given} if _quickly else given, **more)


compiler.get_compile_options = _options_of_tests


# JAX makes a context of MLIR's, with all dialects, for each program that it lowers: 6 ms, more than the lowering of a
# small one. A context keeps the constants of its programs, so each serves a few.
_LOWERED = 64
_new_context = mlir.make_ir_context
_contexts: list[Any] = []


def _context_of_tests() -> Any:
    if ir.Context.current is not None:  # what is lowered while another program is must not be put into that one
        return _new_context()
    if not _contexts:  # threads may both find it empty, and then both make some
        _contexts.extend([_new_context()] * _LOWERED)
    return _contexts.pop()


mlir.make_ir_context = _context_of_tests


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _quickly
    _quickly = os.environ.get("RELAX_EG_XLA") != "default" and item.get_closest_marker("xla_defaults") is None


# In CI, examples are the same in every run, so that a red run is red again when repeated. Elsewhere each run draws its
# own, and a failure prints the line that repeats it. No profile has a deadline: a first call compiles.
settings.register_profile("varied", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "varied")


@pytest.fixture
def no_library_stays() -> Iterator[None]:
    """Removes the registrations of a test after it."""
    from relax_eg.ops.libraries import LIBRARIES

    known = dict(LIBRARIES)
    yield
    LIBRARIES.clear()
    LIBRARIES.update(known)


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """Makes the warning for a function that is not optimized an error, which fails a test that does not expect it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs as written.*")
        yield


# Parametrized tests whose cases are many and alike: of how many cases the quick lane runs one. The slow lane runs all.
ONE_OF = {
    "tests/dynamic/test_operators.py::test_an_operator_at_capacity": 2,
    "tests/dynamic/test_whole_programs.py::test_a_program_at_capacity": 2,
    "tests/frontends/test_onnx_operators.py::test_a_few_sets_agree": 2,
    "tests/frontends/test_positions.py::test_positions_out_of_range": 2,
    "tests/frontends/test_trace.py::test_equals_the_function": 2,
    "tests/measure/test_benchmark_cases.py::test_forms_by_hand_compute_the_program_as_written": 3,
    "tests/ops/test_deduction.py::test_the_coarse_answer_follows_from_the_exact_one": 4,
    "tests/ops/test_facets.py::test_facets": 3,
    "tests/reports/test_reports.py::test_nothing_is_above_its_roof": 4,
    "tests/rules/test_convolutions.py::test_proposals_are_equal_on_random_convolutions": 3,
    "tests/rules/test_corpus.py::test_laws_fire_and_what_is_chosen_equals_the_program_as_written": 3,
    "tests/rules/test_verdicts.py::test_the_verdict_on_file_is_what_is_found": 4,
    "tests/test_accumulated.py::test_training_steps_need_a_share_of_the_memory": 3,
    "tests/test_executables.py::test_no_more_executables_are_kept_than_asked_for": 3,
    "tests/test_fixed_sizes.py::test_what_jax_gives": 3,
    "tests/test_libraries.py::test_as_plain_jax": 3,
    "tests/test_python_sizes.py::test_python_may_look_at_sizes": 2,
    "tests/test_structured_modules.py::test_they_get_what_other_modules_get": 3,
    "tests/test_wide.py::test_one_meaning": 2,
}


# Tests of more than ten seconds beside which a quicker one has the same property: node ids, or how they begin.
SLOW = (
    "tests/dynamic/test_decoder.py::test_some_prompts",
    "tests/explain/test_explain.py::test_every_step_is_a_rule_that_was_replayed[decoder]",
    "tests/extract/test_clock.py::test_without_seconds_the_greedy_choice_is_taken_and_told[kernels]",
    "tests/memory/test_memory_llama.py::test_llama3_8b_needs_less_than_is_published[prefill]",
    "tests/memory/test_memory_others.py::test_what_is_live_in_a_run_is_what_is_planned",
    "tests/reports/test_decoders.py::test_two_layers_without_weights[gemma1.1-7b]",
    "tests/reports/test_decoders.py::test_two_layers_without_weights[qwen2-7b]",
    "tests/reports/test_reports.py::test_nothing_is_above_its_roof[kernels-h100]",
    "tests/test_accumulated.py::test_training_steps_need_a_share_of_the_memory[attention-0.2]",
    "tests/test_cache.py::test_operators_of_users_keep_it_away",
    "tests/test_docs.py::test_snippet_runs[memory.md-4]",
    "tests/test_docs.py::test_snippet_runs[memory.md-5]",
    "tests/test_docs.py::test_snippet_runs[reports.md-1]",
    "tests/test_executables.py::test_no_more_executables_are_kept_than_asked_for[kernels]",
    "tests/test_executions.py::test_a_family_has_variants_of_both_executions",
    "tests/test_families.py::test_routines_that_tie_with_generated_kernels_make_no_family[a100]",
    "tests/test_families.py::test_routines_that_tie_with_generated_kernels_make_no_family[rtx4090]",
    "tests/test_families.py::test_the_variant_is_as_good_as_a_program_for_that_size_alone[attention-10]",
    "tests/test_families.py::test_the_variant_is_as_good_as_a_program_for_that_size_alone[llama-5]",
    "tests/test_fixed_sizes.py::test_the_example_encoder_for_one_sentence_and_for_one_token",
    "tests/test_generating_examples.py::test_llava_sees_and_answers_for_any_number_of_pictures",
    "tests/test_generating_examples.py::test_whisper_hears_and_writes_at_every_length",
    "tests/test_libraries.py::test_as_plain_jax[blackjax: Hamiltonian Monte Carlo step]",
    "tests/test_libraries.py::test_as_plain_jax[distrax: coupling flow]",
    "tests/test_libraries.py::test_as_plain_jax[jaxopt: projections]",
    "tests/test_libraries.py::test_as_plain_jax[optax: lion]",
    "tests/test_libraries.py::test_as_plain_jax[optimistix: Newton's method]",
    "tests/test_libraries.py::test_as_plain_jax[tinygp: marginal likelihood and prediction]",
    "tests/test_memory_limit.py::test_scores_are_there_a_piece_at_a_time[whole]",
    "tests/test_memory_limit.py::test_the_executable_that_is_called_keeps_the_limit[0.4]",
    "tests/test_memory_limit.py::test_values_are_computed_again_to_keep_a_limit",
    "tests/test_models.py::test_model[gpt2]",
    "tests/test_models.py::test_model[unet_transposed]",
    "tests/test_splitting.py::test_parts_add_up[bfloat16]",
    "tests/test_time_limit.py::test_a_time_that_nothing_keeps_names_the_least",
    "tests/test_varying.py::test_a_step_of_training_for_texts_of_every_length",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = Counter[str]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        slow = item.nodeid.startswith(SLOW) or seen[function] % ONE_OF.get(function, 1) != 0
        seen[function] += 1
        if slow:
            item.add_marker(pytest.mark.slow)
