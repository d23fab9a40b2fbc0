import pytest

from hardware import units
from hardware.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80 GB", 80e9),
        ("80 GiB", 80 * 2**30),
        ("80GB", 80e9),
        ("450 GB/s", 450e9),
        ("400 Gb/s", 50e9),
        ("400 Gbps", 50e9),
        ("3 us", 3e-6),
        ("3 µs", 3e-6),
        ("989 TFLOP/s", 989e12),
        ("1.979 PFLOPS", 1.979e15),
        ("700 W", 700.0),
        ("10.2 kW", 10200.0),
        ("95 %", 0.95),
        ("2.5 $/h", 2.5),
        ("1.5e3", 1500.0),
        (12, 12.0),
        (0.5, 0.5),
    ],
)
def test_a_number_with_its_unit_is_read_in_si(text: object, value: float) -> None:
    assert units.parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("80 GX", "B", "unknown unit 'GX'"),
        ("80 gb", "B", "did you mean 'GB'"),
        ("450 GB", "B/s", "unit of another kind"),
        ("450 GB/s", "B", "unit of another kind"),
        ("1/2 GB", "B", "an amount of memory"),
        ("80 G B", "B", "an amount of memory"),
        ("1.2.3 GB", "B", "an amount of memory"),
        ("GB", "B", "an amount of memory"),
        ("", "B", "an amount of memory"),
        ("nan", None, "a number"),
        ("1e999 GB", "B", "not a finite number"),
        (float("nan"), None, "not a finite number"),
        (float("inf"), None, "not a finite number"),
        (10**400, None, "not a finite number"),
        (True, "B", "true or false"),
        ([1], "B", "a list"),
        (None, "B", "NoneType"),
        ("80\nGX", "B", "unknown unit"),
    ],
)
def test_anything_else_is_one_line_that_says_what_was_expected(value: object, kind: str | None, says: str) -> None:
    with pytest.raises(InputError) as caught:
        units.parse(value, kind)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(79.1 * 2**30), "79.1 GiB"),
        (units.format_bytes(512), "512 B"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(-3 * 2**30), "-3 GiB"),
        (units.format_bandwidth(450e9), "450 GB/s"),
        (units.format_bandwidth(1500), "1.5 kB/s"),
        (units.format_flops(989e12), "989 TFLOP/s"),
        (units.format_flops(999.9e12), "1 PFLOP/s"),
        (units.format_power(10200), "10.2 kW"),
        (units.format_energy(3.6e9), "1 MWh"),
        (units.format_count(405_853_000_000), "406 G"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(0.99999), "1 s"),
        (units.format_seconds(3.4e-6), "3.4 us"),
        (units.format_seconds(5e-8), "50 ns"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(3 * 86400), "3 d"),
        (units.format_seconds(3 * 3600), "3 h"),
    ],
)
def test_a_value_is_shown_with_three_digits_and_its_prefix(text: str, expected: str) -> None:
    assert text == expected
