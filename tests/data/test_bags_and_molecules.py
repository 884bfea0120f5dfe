"""Sentences as bags of words, molecules as counts of tokens, mushrooms as classes."""

from __future__ import annotations

import lzma

import pytest
import torch

from temperance.core.errors import ArgumentError, DataError
from temperance.data import bags, molecules
from temperance.data.catalog import list_data_sets, load, verify
from tests.data.test_catalog import folder, need, own_cache  # noqa: F401 (fixtures)

BAGS = ("trec", "sst2", "mr", "agnews")


@pytest.mark.parametrize("name", BAGS)
def test_bags_of_words_have_norm_one_and_words_of_the_training_rows(name, monkeypatch):
    need(name, monkeypatch)
    train, test = load(name, vocabulary=60)
    entry = next(entry for entry in list_data_sets() if entry.name == name)
    assert len(train) + len(test) == entry.rows
    assert train.x.shape[1] == test.x.shape[1] == 60
    for part in (train, test):
        norms = part.x.norm(dim=1)
        assert torch.allclose(norms[norms > 0], torch.ones(1), atol=1e-5)
        assert set(part.y.tolist()) == set(range(part.info.num_classes))
    (texts, labels), given = bags.read_sentences(name)
    if given is not None:  # the row is what its text says: a word that is there counts, one that is not does not
        found = bags.count_words(texts[:50])
        for row, words in enumerate(found):
            there = {word for word, value in zip(train.info.features, train.x[row].tolist(), strict=True) if value > 0}
            assert there == set(words) & set(train.info.features)
            assert train.info.classes[int(train.y[row])] == labels[row]


def test_reviews_are_divided_anew_by_split_and_nothing_else(monkeypatch):
    need("mr", monkeypatch)
    (a, rest), (again, _), (b, _) = load("mr", split=1), load("mr", split=1), load("mr", split=2)
    assert torch.equal(a.x, again.x)
    assert not torch.equal(a.y, b.y)
    assert len(rest) == round(0.1 * 10662)
    assert int(rest.y.sum()) * 2 == len(rest), "each class keeps its share"
    need("trec", monkeypatch)
    with pytest.raises(ArgumentError, match="`split` must be 0"):
        load("trec", split=1)
    with pytest.raises(ArgumentError, match="`vocabulary`"):
        load("trec", vocabulary=0)


def test_vocabulary_is_that_of_the_training_rows_alone():
    train, test = bags.count_words(["good good film", "bad film!"]), bags.count_words(["dull dull dull"])
    words = bags.most_frequent(train, 3)
    assert words == ("film", "good", "!")
    assert bags.bag(test, words).tolist() == [[0.0, 0.0, 0.0]]


def test_files_are_taken_plain_or_packed_and_damage_is_found(folder, own_cache, monkeypatch):  # noqa: F811
    content = b"smiles,expt\nCCl,-1.5\n"
    (folder / "molecules").mkdir()
    (folder / "molecules" / "freesolv.csv.xz").write_bytes(lzma.compress(content))
    with pytest.raises(DataError, match="checksum"):
        molecules.read_molecules("freesolv")
    assert verify("freesolv")[0].status == "corrupt"


@pytest.mark.parametrize(("name", "rows"), [("esol", 1128), ("freesolv", 642), ("lipophilicity", 4200)])
def test_molecules_are_standardised_on_training_rows(name, rows, monkeypatch):
    need(name, monkeypatch)
    train, test = load(name, split=3)
    assert len(train) + len(test) == rows
    assert len(test) == round(0.1 * rows)
    assert train.x.shape[1] == 100
    assert torch.allclose(train.x.mean(0), torch.zeros(100), atol=1e-4)
    assert torch.allclose(train.y.std(correction=0), torch.ones(1), atol=1e-4)
    assert not torch.equal(load(name, split=4)[0].y, train.y)
    _, y = molecules.read_molecules(name)
    back = torch.cat([train.y, test.y]) * train.info.y_scale + train.info.y_mean
    assert torch.allclose(back.flatten().sort().values, torch.tensor(y.flatten()).float().sort().values, atol=1e-4)


def test_two_letters_of_one_atom_are_one_token():
    found = molecules.spell("ClC%12[C@@H](Br)C=C1")
    assert found["Cl"] == found["Br"] == found["[C@@H]"] == found["%12"] == 1
    assert found["C"] == 3
    assert found["ClC"] == found["C=C"[:2]] == found["C1"] == 1
    assert "l" not in found


def test_mushrooms_as_classes(monkeypatch):
    need("mushroom", monkeypatch)
    train, test = load("mushroom", split=2)
    assert (len(train), len(test)) == (7311, 813)
    assert train.x.shape[1] == 117
    assert set(train.x.unique().tolist()) == {0.0, 1.0}
    assert int(train.y.sum() + test.y.sum()) == 4208
