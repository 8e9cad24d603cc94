"""Entries of `runtime.allowed_hosts`: one spelling of each host, and no other way to it."""

from __future__ import annotations

import ipaddress
from ipaddress import ip_address

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topics.types.allowed_hosts import (
    AllowedHost,
    Reach,
    address_of,
    canonical_host,
    entry_for,
    reach_of,
    split_port,
)

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
NAMES = st.tuples(st.lists(LABELS, min_size=1, max_size=3), st.sampled_from(["org", "example", "xn--p1ai", "a1"])).map(
    lambda parts: ".".join([*parts[0], parts[1]])
)


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        ("pypi.org", ["pypi.org:443", "pypi.org:80"], ["pypi.org:8443", "a.pypi.org:443", "xpypi.org:443", "pypi.org.evil.org:443"]),
        ("PyPI.org.", ["pypi.org:443"], []),
        ("pypi.org:8443", ["pypi.org:8443"], ["pypi.org:443"]),
        ("*.example.org", ["a.example.org:443", "a.b.example.org:80"], ["example.org:443", "xexample.org:443"]),
        ("*.example.org:1", ["a.example.org:1"], ["a.example.org:443"]),
        ("mirror.corp!private", ["mirror.corp:443"], ["a.mirror.corp:443"]),
        ("mirror.corp:8443!private", ["mirror.corp:8443"], []),
        ("10.0.0.7:8080", ["10.0.0.7:8080"], ["10.0.0.7:443"]),
        ("[fd00::0007]", ["[fd00::7]:443", "[FD00:0::7]:80"], ["[fd00::8]:443"]),
        ("[::ffff:10.0.0.7]", ["10.0.0.7:443"], []),
    ],
)  # fmt: skip
def test_an_entry_allows_what_it_says(entry: str, allowed: list[str], refused: list[str]) -> None:
    parsed = AllowedHost.parse(entry)
    for host_port, is_allowed in [(each, True) for each in allowed] + [(each, False) for each in refused]:
        host, port = split_port(host_port)
        assert port is not None
        assert parsed.allows(canonical_host(host), port) is is_allowed


@pytest.mark.parametrize(
    "entry",
    [
        *("", "*", "*.", ".", "a..b", "-a.org", "a-.org", "a b.org", "bücher.example", "a" * 64, "a." * 130 + "a"),
        *("a.org:0", "a.org:65536", "a.org:x", "a.org:", "https://a.org", "a.org/x", "u@a.org"),
        *("*.*.org", "a.*.org", "*.10.0.0.1", "10.0.0.1!private", "a.org!public", "a.org!"),
        *("::1", "[::1", "[fe80::1%eth0]", "[10.0.0.1]", "10.0.0", "10.0.0.256", "010.0.0.1"),
        *("0x7f.0.0.1", "2130706433", "0x7f000001", "a.0x7f", "a.1"),
    ],
)
def test_what_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        AllowedHost.parse(entry)


@pytest.mark.parametrize(
    "spelling",
    ["127.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433", "017700000001", "127.0.0.1.", "１２７.0.0.1", "127。0。0。1",
     "%31%32%37.0.0.1", "localhost%00.org", "127.0.0.1%00", "[::ffff:7f00:1%lo]", "[127.0.0.1]", "0", "0x", "1e0.1"],
)  # fmt: skip
def test_an_odd_spelling_is_no_host_or_the_very_address(spelling: str) -> None:
    try:
        host = canonical_host(spelling)
    except ValueError:
        return
    assert host == "127.0.0.1"
    assert AllowedHost.parse(spelling).host == host


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("1.1.1.1", Reach.PUBLIC),
        ("2606:4700::1111", Reach.PUBLIC),
        ("64:ff9b::101:101", Reach.PUBLIC),
        ("10.1.2.3", Reach.PRIVATE),
        ("172.31.0.1", Reach.PRIVATE),
        ("192.168.0.1", Reach.PRIVATE),
        ("100.64.0.1", Reach.PRIVATE),
        ("100.100.100.200", Reach.LOCAL),
        ("fd12::1", Reach.PRIVATE),
        ("::ffff:10.1.2.3", Reach.PRIVATE),
        ("64:ff9b::a01:203", Reach.PRIVATE),
        ("2002:a01:203::1", Reach.PRIVATE),
        ("127.0.0.1", Reach.LOCAL),
        ("127.8.8.8", Reach.LOCAL),
        ("0.0.0.0", Reach.LOCAL),
        ("169.254.169.254", Reach.LOCAL),
        ("224.0.0.1", Reach.LOCAL),
        ("239.1.1.1", Reach.LOCAL),
        ("240.0.0.1", Reach.LOCAL),
        ("255.255.255.255", Reach.LOCAL),
        ("192.0.2.1", Reach.LOCAL),
        ("198.18.0.1", Reach.LOCAL),
        ("::", Reach.LOCAL),
        ("::1", Reach.LOCAL),
        ("::7f00:1", Reach.LOCAL),
        ("::ffff:127.0.0.1", Reach.LOCAL),
        ("::ffff:169.254.169.254", Reach.LOCAL),
        ("64:ff9b::7f00:1", Reach.LOCAL),
        ("64:ff9b:1::1", Reach.LOCAL),
        ("2002:7f00:1::1", Reach.LOCAL),
        ("2001:0:a00:1::1", Reach.LOCAL),
        ("fe80::1", Reach.LOCAL),
        ("fec0::1", Reach.LOCAL),
        ("ff02::1", Reach.LOCAL),
        ("2001:db8::1", Reach.LOCAL),
        ("fd00:ec2::254", Reach.LOCAL),
    ],
)
def test_who_is_reached_at_an_address(address: str, reach: Reach) -> None:
    assert reach_of(ip_address(address)) is reach


def test_a_name_leads_to_public_addresses_and_a_literal_to_itself() -> None:
    public, private, local = map(ip_address, ("1.1.1.1", "10.0.0.7", "127.0.0.1"))
    for entry, allowed in (("a.org", {public}), ("*.a.org!private", {public, private}), ("127.0.0.1", {local})):
        parsed = AllowedHost.parse(entry)
        assert {address for address in (public, private, local) if parsed.allows_address(address)} == allowed


def test_of_several_entries_the_one_with_private_addresses_counts() -> None:
    entries = [AllowedHost.parse(entry) for entry in ("*.corp.org", "a.corp.org!private")]
    assert entry_for(entries, "a.corp.org", 443) is entries[1]
    assert entry_for(entries, "b.corp.org", 443) is entries[0]
    assert entry_for(entries, "corp.org", 443) is None


@given(NAMES, st.data())
def test_a_name_has_one_spelling_and_is_allowed_by_it_alone(name: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(st.sampled_from([c, c.upper()])) for c in name) + data.draw(st.sampled_from(["", "."]))
    assert canonical_host(spelled) == name
    assert canonical_host(name) == name
    assert address_of(name) is None
    entry = AllowedHost.parse(spelled)
    assert entry.allows(name, 443)
    other = data.draw(NAMES)
    assume(other != name)
    assert not entry.allows(other, 443)
    below = AllowedHost.parse(f"*.{name}")
    assert below.allows(f"{other}.{name}", 443)
    assert below.allows(other, 443) is other.endswith(f".{name}")


@given(st.ip_addresses())
def test_an_address_has_one_spelling(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    spelled = str(address) if address.version == 4 else f"[{address.exploded.upper()}]"
    host = canonical_host(spelled)
    found = address_of(host)
    assert found is not None
    assert found == (getattr(address, "ipv4_mapped", None) or address)
    assert canonical_host(f"[{host}]" if ":" in host else host) == host


@given(st.text(max_size=20))
def test_any_text_is_a_host_in_ascii_or_refused(text: str) -> None:
    try:
        host = canonical_host(text)
    except ValueError:
        return
    assert host.isascii()
    assert host == host.lower()
    assert address_of(host) or set(host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
