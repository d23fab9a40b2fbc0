"""The benchmarks run; how fast is for `python -m benchmarks` to say."""

from benchmarks.bench_score import run


def test_scoring_is_timed_beside_its_reference() -> None:
    score = run(rows=1_000, repeats=1)
    assert score.layouts > 0
    assert score.ratio == score.layouts / score.reference
    assert "ratio" in str(score)
