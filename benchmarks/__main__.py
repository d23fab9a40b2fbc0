"""`python -m benchmarks`: every benchmark, one line each."""

from benchmarks.bench_score import run

print(run())
