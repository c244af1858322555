from tinytrain.watch.table import Table


def test_a_table_reads_well_anywhere():
    table = Table(["module", "largest"], [["a", "1"], ["b<c", "22"]], marked={1})
    assert str(table) == "  module  largest\n  a             1\n> b<c          22"
    assert "b&lt;c" in table._repr_html_() and len(table) == 2 and len(table.head(1)) == 1
    assert str(Table(["module"], [])) == "  module"
