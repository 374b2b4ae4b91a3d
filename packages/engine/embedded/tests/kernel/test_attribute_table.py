from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dex_embedded._kernel.snapshot import select_attributes
from dex_embedded._kernel.state import AttributeTable
from dex_embedded._kernel.values import AttributeVersion, Selection


def version(key: str, number: int) -> AttributeVersion:
    return AttributeVersion(key=key, version=number, value=b"%d" % number)


class CountingSource:
    """Map entries as a store would have them; counts what it is asked for."""

    def __init__(self, versions: Iterable[AttributeVersion]) -> None:
        self._stored = {stored.key: stored for stored in versions}
        self.asked: list[str] = []

    def entry(self, key: str) -> AttributeVersion | None:
        self.asked.append(key)
        return self._stored.get(key)

    def entries(self, map_name: str) -> Iterable[AttributeVersion]:
        self.asked.append(f"{map_name}/")
        return [v for key, v in self._stored.items() if key.startswith(f"{map_name}/")]

    def everything(self) -> Iterable[AttributeVersion]:
        self.asked.append("everything")
        return list(self._stored.values())


KEYS = ("a", "b", "m/1", "m/2", "m/3", "n/1", "n/2")
MAP_KEYS = tuple(key for key in KEYS if "/" in key)

actions = st.lists(
    st.tuples(st.sampled_from(["get", "put", "remove", "map", "all"]), st.sampled_from(KEYS)),
    max_size=30,
)


@given(stored=st.sets(st.sampled_from(MAP_KEYS)), script=actions)
def test_a_table_with_a_source_behaves_like_one_that_has_everything(
    stored: set[str], script: list[tuple[str, str]]
) -> None:
    model = {key: version(key, number) for number, key in enumerate(sorted(stored))}
    table = AttributeTable((), CountingSource(model.values()))
    for number, (action, key) in enumerate(script, 100):
        match action:
            case "get":
                assert table.get(key) == model.get(key)
            case "put":
                table.put(version(key, number))
                model[key] = version(key, number)
            case "remove":
                assert table.remove(key) == model.pop(key, None)
            case "map":
                name = key.partition("/")[0]
                expected = [v for k, v in model.items() if k.startswith(f"{name}/")]
                assert sorted(table.entries(name), key=str) == sorted(expected, key=str)
            case _:
                assert sorted(table, key=str) == sorted(model.values(), key=str)
    assert table == AttributeTable(model.values())


def test_exact_keys_of_a_large_map_cost_by_the_keys_asked_for() -> None:
    source = CountingSource(version(f"m/{number}", number) for number in range(1_000))
    table = AttributeTable([version("a", 1)], source)
    selection = Selection(attribute_maps=("m/5", "m/7", "m/missing"))
    for _ in range(3):
        shown = select_attributes(table, selection)
        assert [found.key for found in shown] == ["a", "m/5", "m/7"]
    assert sorted(source.asked) == ["m/5", "m/7", "m/missing"]


def test_a_whole_map_is_fetched_once() -> None:
    source = CountingSource(version(f"m/{number}", number) for number in range(10))
    table = AttributeTable((), source)
    table.put(version("m/3", 100))
    table.remove("m/4")
    for _ in range(2):
        shown = select_attributes(table, Selection(attribute_maps=("m/", "m/3")))
        assert len(shown) == 9
        assert version("m/3", 100) in shown
    assert source.asked == ["m/4", "m/"]
