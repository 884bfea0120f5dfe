from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import shutil
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from temperance.core.errors import ArgumentError, DataError, MissingDataSetError
from temperance.data import images, text
from temperance.data.catalog import data_home, list_data_sets, load, load_all, verify
from temperance.data.embedded import split_rows
from temperance.data.files import FileSet, KnownFile

REPOSITORY = Path(__file__).resolve().parents[2]
CLASSIFICATION = ("digits", "iris", "wine", "breast-cancer", "two-moons", "blobs")
EMBEDDED = (*CLASSIFICATION, "diabetes", "sine")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TEMPERANCE_CACHE", str(cache))
    return cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that ``TEMPERANCE_DATA`` names."""
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path))
    return tmp_path


def need(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a real data set, or a skipped test that says why."""
    if not os.environ.get("TEMPERANCE_DATA"):
        monkeypatch.setenv("TEMPERANCE_DATA", str(REPOSITORY.parent / "shared" / "data"))
    where = next(entry.where for entry in list_data_sets() if entry.name == name)
    if where == "not found":
        pytest.skip(f"the files of {name} are not there: set TEMPERANCE_DATA to a folder that has them")
    return Path(where)


# Embedded sets


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_shapes_types_and_statistics(name: str) -> None:
    train, test = load(name)
    entry = next(entry for entry in list_data_sets() if entry.name == name)
    assert entry.where == "embedded"
    assert len(train) + len(test) == entry.rows
    assert abs(len(test) / entry.rows - 0.2) < 0.01
    assert train.info.name == name
    assert train.info.outcome == entry.outcome
    for part in (train, test):
        assert part.x.dtype == torch.float32
        assert torch.isfinite(part.x).all()
        if name in CLASSIFICATION:
            assert part.y.dtype == torch.int64
            assert part.y.shape == (len(part),)
            assert set(part.y.tolist()) == set(range(part.info.num_classes or 0))
            assert len(part.info.classes) == part.info.num_classes
        else:
            assert part.y.dtype == torch.float32
            assert part.y.shape == (len(part), 1)
    if train.info.x_mean is not None:
        assert torch.allclose(train.x.mean(0), torch.zeros(train.x.shape[1]), atol=1e-5)
        assert torch.allclose(train.x.std(0, correction=0), torch.ones(train.x.shape[1]), atol=1e-4)


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_sets_follow_from_seed_and_split_alone(name: str) -> None:
    first = load(name, split=1, seed=3)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    again = load(name, split=1, seed=3)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    for other in (load(name, split=2, seed=3), load(name, split=1, seed=4)):
        assert not torch.equal(other[0].x, first[0].x)


def test_split_is_disjoint_complete_and_stratified() -> None:
    labels = torch.tensor([0] * 50 + [1] * 100 + [2] * 150)
    train, test = split_rows(labels, 300, torch.Generator().manual_seed(0))
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(300))
    assert torch.bincount(labels[test]).tolist() == [10, 20, 30]
    assert labels[train][:20].unique().numel() > 1, "classes must be mixed"


def test_digits_are_the_pixels_of_scikit_learn_without_overlap() -> None:
    from sklearn.datasets import load_digits

    train, test = load("digits")
    seen = sorted(map(tuple, (16 * torch.cat([train.x, test.x])).tolist()))
    assert seen == sorted(map(tuple, load_digits().data.tolist()))
    assert train.info.image_shape == (1, 8, 8)


def test_regression_statistics_undo_the_scaling() -> None:
    from sklearn.datasets import load_diabetes

    train, test = load("diabetes")
    info = train.info
    assert info.y_mean is not None
    assert info.y_scale is not None
    y = torch.cat([train.y, test.y]) * info.y_scale + info.y_mean
    expected = torch.tensor(load_diabetes().target, dtype=torch.float32)
    assert torch.allclose(y.flatten().sort().values, expected.sort().values, atol=1e-3)


def test_options_of_the_toys_and_the_gap_of_sine() -> None:
    assert len(load("two-moons", n=50, noise=0.0)[0]) == 40
    assert load("blobs", n=60, classes=4, features=3)[0].x.shape == (48, 3)
    train, test = load("sine", n=1000)
    assert train.x.abs().min() >= 1.0
    assert (test.x.abs() < 1.0).any()
    for wrong in ({"n": 1}, {"noise": -0.1}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            load("two-moons", **wrong)


# Names, folders and messages


def test_spellings_are_accepted_and_unknown_names_get_a_hint(folder: Path) -> None:
    assert load("Two_Moons")[0].info.name == "two-moons"
    assert load("Breast Cancer")[0].info.name == "breast-cancer"
    for spelling in ("fashion_mnist", "Fashion-MNIST", "FashionMNIST"):
        with pytest.raises(MissingDataSetError, match="fashion-mnist"):
            load(spelling)
    with pytest.raises(ArgumentError, match=r"one of digits, iris.*got 'mnits'.*Did you mean 'mnist'\?"):
        load("mnits")


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="`split`"):
        load("iris", split=-1)
    with pytest.raises(ArgumentError, match=r"`split` must be 0.*got 1"):
        load("mnist", split=1)
    with pytest.raises(ArgumentError, match="`seed`"):
        load("iris", seed="0")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"two-moons.*n.*noise.*got nosie"):
        load("two-moons", nosie=0.1)
    with pytest.raises(ArgumentError, match="`split` must be from 0 to 4"):
        load("protein", split=5)
    with pytest.raises(ArgumentError, match="`length`"):
        load("imdb", length=0)


@pytest.mark.parametrize("name", ["mnist", "notmnist", "cifar10", "cifar100", "imdb", "concrete", "mr", "esol"])
def test_a_missing_set_says_where_it_was_looked_for_and_how_to_provide_it(
    name: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setenv("TEMPERANCE_DATA", os.pathsep.join(map(str, roots)))
    assert data_home() == roots[0]
    with pytest.raises(MissingDataSetError) as caught:
        load(name)
    message = str(caught.value)
    for part in (name, "TEMPERANCE_DATA", "https://", *(str(root) for root in roots), str(own_cache)):
        assert part in message
    expected = {"mnist": "train-images-idx3-ubyte.gz", "cifar10": "cifar-10-binary.tar.gz", "concrete": "data.txt"}
    expected["cifar100"] = "cifar-100-binary.tar.gz"
    assert expected.get(name, "") in message
    assert verify(name)[0].status == "missing"
    assert next(entry.where for entry in list_data_sets() if entry.name == name) == "not found"


def test_every_set_is_verified_and_embedded_ones_are_always_fine(folder: Path) -> None:
    status = {result.name: result.status for result in verify()}
    assert set(status) == {entry.name for entry in list_data_sets()}
    assert {name for name, found in status.items() if found == "ok"} == set(EMBEDDED)


# Checksums


def test_content_is_checked_whatever_its_packing(folder: Path) -> None:
    content = b"ten thousand digits"
    known = KnownFile("digits", (f"sha256:{hashlib.sha256(content).hexdigest()}",), (".gz", ".xz", ""))
    found = FileSet("test", ("here",), (known,), "somewhere")
    (folder / "here").mkdir()
    for packing, packed in ((".gz", gzip.compress(content, 1)), (".xz", lzma.compress(content)), ("", content)):
        path = folder / "here" / f"digits{packing}"
        path.write_bytes(packed)
        assert found.read("digits") == content
        path.write_bytes(packed[:-1])
        with pytest.raises(DataError, match=f"file {path}"):
            found.read("digits")
        path.unlink()


def test_a_file_changed_behind_its_size_and_time_is_found_out(folder: Path, own_cache: Path) -> None:
    known = KnownFile("a", (f"sha256:{hashlib.sha256(b'right').hexdigest()}",))
    found = FileSet("test", (".",), (known,), "somewhere")
    (folder / "a").write_bytes(b"right")
    status = (folder / "a").stat()
    assert found.read("a") == b"right"
    (folder / "a").write_bytes(b"wrong")
    os.utime(folder / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (folder / "a").stat().st_mtime_ns == status.st_mtime_ns
    with pytest.raises(DataError, match=r"must be sha256:[0-9a-f]{64}; got sha256:"):
        found.read("a")


def test_an_archive_is_checked_before_it_is_opened_and_never_extracted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that would write outside its folder is of no use: it has another digest, and nothing is extracted anyway."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("../../outside.bin", "/outside.bin", "cifar-10-batches-bin/data_batch_1.bin"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"evil"))
    name = "cifar-10-binary.tar.gz"
    for place in (folder, folder / "cifar10"):
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(packed.getvalue())
    opened: list[object] = []
    monkeypatch.setattr(tarfile, "open", lambda *args, **kwargs: opened.append(kwargs))
    files_of = FileSet("test", (".",), (KnownFile(name, ("sha256:" + "0" * 64,)),), "somewhere")
    with pytest.raises(DataError, match="checksum"):
        images._batches(files_of, ("data_batch_1",), True)
    assert not opened
    monkeypatch.undo()
    with pytest.raises(DataError, match="must hold"):
        images._batches(FileSet("test", (str(folder),), (KnownFile(name),), ""), ("data_batch_2",), False)
    assert sorted(path.name for path in folder.parent.iterdir() if path.name.startswith("outside")) == []


@pytest.mark.parametrize("packed", [True, False])
def test_a_flipped_byte_in_mnist_labels_is_found(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, folder = need("mnist", monkeypatch), tmp_path
    (folder / "mnist").mkdir()
    for path in source.glob("*-ubyte*"):
        (folder / "mnist" / path.name).symlink_to(path)
    label = folder / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = label.read_bytes() if packed else gzip.decompress(label.read_bytes())
    label.unlink()
    if not packed:
        label = label.with_suffix("")
    label.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    monkeypatch.setenv("TEMPERANCE_DATA", str(folder))
    with pytest.raises(DataError, match=str(label)) as caught:
        load("mnist")
    if not packed:
        assert "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2" in str(caught.value)
        assert hashlib.sha256(label.read_bytes()).hexdigest() in str(caught.value)
    result = verify("mnist")[0]
    assert result.status == "corrupt"
    assert str(label) in result.message


# IDX


def test_idx_is_parsed_and_wrong_lengths_are_refused() -> None:
    content = b"\x00\x00\x08\x03" + struct.pack(">III", 2, 1, 3) + bytes(range(6))
    assert images.parse_idx(content, "x").tolist() == [[[0, 1, 2]], [[3, 4, 5]]]
    for wrong in (b"", content[:-1], content + b"\x00", b"\x00\x00\x09" + content[3:], content[:6]):
        with pytest.raises(DataError, match="IDX"):
            images.parse_idx(wrong, "x")


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
def test_mnist_and_fashion_mnist(name: str, mean: float, monkeypatch: pytest.MonkeyPatch) -> None:
    need(name, monkeypatch)
    train, test = load(name)
    assert train.x.shape == (60000, 1, 28, 28)
    assert test.x.shape == (10000, 1, 28, 28)
    assert train.x.dtype == torch.float32
    assert (float(train.x.min()), float(train.x.max())) == (0.0, 1.0)
    assert abs(float(train.x.mean()) - mean) < 1e-4
    assert torch.bincount(test.y).shape == (10,)
    assert train.y[:5].tolist() == ([5, 0, 4, 1, 9] if name == "mnist" else [9, 0, 0, 3, 0])


def test_notmnist_in_two_parts_and_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    need("notmnist", monkeypatch)
    train, test = load("notMNIST")
    everything = load_all("notmnist")
    assert (len(train), len(test), len(everything)) == (8000, 2000, 10000)
    assert torch.equal(everything.x[8000:], test.x)
    assert torch.bincount(everything.y).tolist() == [1000] * 10
    assert everything.info.classes == tuple("ABCDEFGHIJ")


# CIFAR-10

LABELS = [[(batch + row) % 10 for row in range(3)] for batch in range(6)]
PIXELS = np.arange(6 * 3 * 3072, dtype=np.int64).reshape(6, 3, 3072).astype(np.uint8) * np.uint8(7)
BATCHES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def python2_pickle(pixels: np.ndarray, labels: list[int], coarse: list[int] | None = None) -> bytes:
    """The batch dictionary as Python 2 wrote it (protocol 2, byte strings), opcode by opcode."""

    def short(content: bytes) -> bytes:
        return b"U" + bytes([len(content)]) + content

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"M" + struct.pack("<H", pixels.shape[0]) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
    raw = b"T" + struct.pack("<i", pixels.size) + pixels.tobytes()
    data = array + b"(K\x01" + shape + kind + b"\x89" + raw + b"tb"

    def listed(key: bytes, values: list[int]) -> bytes:
        return short(key) + b"](" + b"".join(b"K" + bytes([label]) for label in values) + b"e"

    fine = listed(b"labels" if coarse is None else b"fine_labels", labels)
    groups = b"" if coarse is None else listed(b"coarse_labels", coarse)
    name = short(b"batch_label") + short(b"a batch")
    return b"\x80\x02}(" + name + fine + groups + short(b"data") + data + b"u."


def binary_records(pixels: np.ndarray, labels: list[int]) -> bytes:
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1).tobytes()


def modern_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2)


def write_archive(path: Path, inside: str, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"readme.html": b"<html>", **members}.items():
            entry = tarfile.TarInfo(f"{inside}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize(
    "form", ["binary archive", "binary folder", "python archive", "python folder", "modern pickle"]
)
def test_cifar10_in_the_official_forms(form: str, folder: Path) -> None:
    encode = python2_pickle if form.startswith("python") else modern_pickle
    ending, inside, archive = ("", "cifar-10-batches-py", "cifar-10-python.tar.gz")
    if form.startswith("binary"):
        encode, ending, inside, archive = (binary_records, ".bin", "cifar-10-batches-bin", "cifar-10-binary.tar.gz")
    members = {BATCHES[k] + ending: encode(PIXELS[k], LABELS[k]) for k in range(6)}
    if form.endswith("folder"):
        (folder / inside).mkdir()
        for name, content in members.items():
            (folder / inside / name).write_bytes(content)
    else:
        write_archive(folder / "cifar10" / archive, inside, members)
    (x, y), (x_test, y_test) = images.read_cifar10(_check=False)
    assert np.array_equal(x, PIXELS[:5].reshape(15, 3, 32, 32))
    assert y.tolist() == [label for batch in LABELS[:5] for label in batch]
    assert np.array_equal(x_test, PIXELS[5].reshape(3, 3, 32, 32))
    assert y_test.tolist() == LABELS[5]
    with pytest.raises(DataError, match="sha256 must be 47af8b02" if form.endswith("folder") else "md5:c"):
        load("cifar10")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_a_malicious_pickle_is_refused_and_not_run(folder: Path) -> None:
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    harmless = {name: python2_pickle(PIXELS[k], LABELS[k]) for k, name in enumerate(BATCHES)}
    for name, content in harmless.items():
        (batches / name).write_bytes(content)
    mark = folder / "mark"
    attacks = [
        pickle.dumps({b"data": PIXELS[0], b"labels": Bomb(mark)}, protocol=protocol) for protocol in (0, 2, 4, 5)
    ]
    attacks += [
        b"cbuiltins\neval\n(S'open(%r, \"w\")'\ntR." % str(mark).encode(),
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"\x80\x02cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.",
        harmless["data_batch_1"][:-500],
        b"",
    ]
    for attack in attacks:
        (batches / "data_batch_1").write_bytes(attack)
        with pytest.raises(DataError, match="data_batch_1"):
            images.read_cifar10(_check=False)
        assert not mark.exists()
    with pytest.raises(DataError, match=r"refused.*(os|posix|nt)\.system"):
        images._parse_python(attacks[1], "data_batch_1")


def test_broken_cifar10_archives(folder: Path) -> None:
    path = folder / "cifar10" / "cifar-10-binary.tar.gz"
    write_archive(path, "cifar-10-batches-bin", {"data_batch_1.bin": b"\x00" * 3073})
    with pytest.raises(DataError, match="data_batch_2"):
        images.read_cifar10(_check=False)
    path.write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz"):
        images.read_cifar10(_check=False)
    with pytest.raises(DataError, match="3073"):
        images._parse_binary(b"\x00" * 3072, "data_batch_1")


def test_cifar10_as_it_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    need("cifar10", monkeypatch)
    train, test = load("CIFAR-10")
    assert test.x.shape == (10000, 3, 32, 32)
    assert train.x.shape[1:] == (3, 32, 32)
    assert train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert test.y[:5].tolist() == [3, 8, 8, 0, 6]
    assert test.info.classes[int(test.y[0])] == "cat"
    if len(train) != 50000:
        assert train.info.note == f"{len(train)} of the 50000 training images are there"
    assert torch.allclose(test.x.mean(dim=(0, 2, 3)), torch.tensor([0.4942, 0.4851, 0.4504]), atol=1e-3)


# CIFAR-100

FINE = {"train": [99, 0, 41, 7], "test": [4, 30]}
COARSE = {"train": [13, 4, 18, 7], "test": [0, 0]}
PIXELS_100 = {"train": PIXELS.reshape(-1, 3072)[:4], "test": PIXELS.reshape(-1, 3072)[4:6]}


def records_100(part: str) -> bytes:
    labels = np.array([COARSE[part], FINE[part]], np.uint8).T
    return np.concatenate([labels, PIXELS_100[part]], axis=1).tobytes()


def pickle_100(part: str) -> bytes:
    return python2_pickle(PIXELS_100[part], FINE[part], COARSE[part])


@pytest.mark.parametrize("form", ["binary archive", "binary folder", "python archive", "python folder"])
def test_cifar100_in_the_official_forms(form: str, folder: Path) -> None:
    binary = form.startswith("binary")
    encode, ending, inside = (
        (records_100, ".bin", "cifar-100-binary") if binary else (pickle_100, "", "cifar-100-python")
    )
    members = {part + ending: encode(part) for part in ("test", "train")}
    if form.endswith("folder"):
        (folder / "cifar100" / inside).mkdir(parents=True)
        for name, content in members.items():
            (folder / "cifar100" / inside / name).write_bytes(content)
    else:
        write_archive(folder / f"{inside}.tar.gz", inside, members)
    for part, (x, y) in zip(("train", "test"), images.read_cifar100(_check=False), strict=True):
        assert np.array_equal(x, PIXELS_100[part].reshape(-1, 3, 32, 32))
        assert y[:, 0].tolist() == COARSE[part]
        assert y[:, 1].tolist() == FINE[part]
    with pytest.raises(DataError, match="500 images of each" if form == "binary folder" else "md5:"):
        load("cifar100")
    assert verify("cifar100")[0].status == "corrupt"


def test_cifar100_labels_and_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of the right kind with fewer images: fine and coarse labels, names, pixels in [0, 1]; a damaged label."""
    monkeypatch.setattr(images, "_CIFAR100_EACH", {"train": 3, "test": 2})
    inside = folder / "cifar-100-binary"
    inside.mkdir()
    for part, each in (("train", 3), ("test", 2)):
        fine = np.tile(np.arange(100, dtype=np.uint8), each)
        records = np.repeat(fine[:, None], 3074, axis=1)
        records[:, 0] = fine % 20
        (inside / f"{part}.bin").write_bytes(records.tobytes())
    train, test = load("CIFAR-100")
    assert train.x.shape == (300, 3, 32, 32)
    assert test.y[:3].tolist() == [0, 1, 2]
    assert float(test.x[99].max()) == pytest.approx(99 / 255)
    assert train.info.num_classes == len(set(train.info.classes)) == 100
    assert list(train.info.classes) == sorted(train.info.classes)
    assert (train.info.classes[99], train.info.classes[30]) == ("worm", "dolphin")
    groups = load("cifar100", coarse=True)[1]
    assert groups.info.num_classes == len(set(groups.info.classes)) == 20
    assert torch.equal(groups.y, test.y % 20)
    assert groups.info.classes[0] == "aquatic_mammals"
    damaged = np.frombuffer((inside / "test.bin").read_bytes(), np.uint8).copy()
    damaged[0] = 5
    (inside / "test.bin").write_bytes(damaged.tobytes())
    with pytest.raises(DataError, match="CIFAR-100 test"):
        load("cifar100")


def test_broken_cifar100_archives(folder: Path) -> None:
    path = folder / "cifar100" / "cifar-100-binary.tar.gz"
    write_archive(path, "cifar-100-binary", {"train.bin": records_100("train")})
    with pytest.raises(DataError, match=r"none called \['test'\]"):
        images.read_cifar100(_check=False)
    write_archive(path, "cifar-100-binary", {"train.bin": records_100("train"), "test.bin": b"\x00" * 3073})
    with pytest.raises(DataError, match="records of 3074 bytes; got 3073"):
        images.read_cifar100(_check=False)


# IMDB


def test_tokens_follow_bytes_as_keras_did() -> None:
    words = {"déjà": 1, "É": 2, "film\u00a0noir": 3, "don't": 4}
    index = {word.encode(): number for word, number in words.items()}
    review = "DéJà É, film\u00a0noir (unknown) DON'T<br />don't"
    assert text.tokenise(review.encode(), index).tolist() == [1, 4, 5, 6, 7, 7]


def test_the_original_imdb_archive_is_read_without_extraction(folder: Path) -> None:
    places = [f"{part}/{kind}" for part in ("train", "test") for kind in ("pos", "neg")]
    members = {f"{place}/{k}_9.txt": place.replace("/", " ").encode() for place in places for k in (0, 10, 2)}
    members["train/unsup/0_0.txt"] = b"not used"
    write_archive(folder / "imdb" / "aclImdb_v1.tar.gz", "aclImdb", members)
    (folder / "imdb" / "imdb_word_index.json").write_text('{"train": 1, "pos": 2}')
    train, test, words = text.read_imdb(check=False)
    assert train["pos/10_9.txt"] == b"train pos"
    assert len(train) == len(test) == 6
    assert words == {b"train": 1, b"pos": 2}
    with pytest.raises(DataError, match="md5:7c2ac02c"):
        load("imdb")


def test_imdb_is_the_one_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    place = need("imdb", monkeypatch)
    train, test = load("imdb", length=218, vocabulary=20000)
    assert train.x.shape == test.x.shape == (25000, 218)
    assert train.x.dtype == train.y.dtype == torch.int64
    # The first review has 218 tokens, so that nothing is cut off and nothing filled up.
    assert train.x[0, :10].tolist() == [1, 14, 22, 16, 43, 530, 973, 1622, 1385, 65]
    assert train.x[0, -5:].tolist() == [16, 5345, 19, 178, 32]
    assert train.y[:10].tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 1, 0]
    assert int(train.x.max()) == 19999
    assert train.y.sum() == test.y.sum() == 12500
    short = (test.x[:, 0] == 0).nonzero()[0, 0]
    tokens = test.x[short]
    assert tokens[(tokens != 0).nonzero()[0, 0]] == 1, "a short review starts with 1 after the zeros"
    reference = place.parent / "hmc-reference" / "hmc_imdb_cnnlstm.npz"
    if reference.is_file():  # predictions that others published for these rows in this order
        with np.load(reference, allow_pickle=False) as published:
            agreement = (torch.from_numpy(published["probs"]).argmax(1) == test.y).float().mean()
        assert abs(float(agreement) - 0.8756) < 1e-4


# UCI tables


@pytest.mark.parametrize("split", [0, 1, 7])
def test_concrete_has_the_standard_splits(split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place = need("concrete", monkeypatch)
    values = np.loadtxt(io.StringIO(lzma.decompress((place / "data.txt.xz").read_bytes()).decode()))
    state = np.random.RandomState(1)
    rows = len(values)
    for _ in range(split + 1):
        permutation = state.choice(range(rows), rows, replace=False)
    cut = round(rows * 0.9)
    train, test = load("concrete", split=split)
    info = train.info
    assert info.x_scale is not None
    assert info.x_mean is not None
    assert info.y_scale is not None
    assert info.y_mean is not None
    for part, index in ((train, permutation[:cut]), (test, permutation[cut:])):
        x, y = part.x * info.x_scale + info.x_mean, part.y * info.y_scale + info.y_mean
        assert np.allclose(x.numpy(), values[index, :8], rtol=1e-4, atol=1e-3)
        assert np.allclose(y.numpy(), values[index, 8:], rtol=1e-4, atol=1e-3)
    assert torch.allclose(train.y.std(correction=0), torch.tensor(1.0), atol=1e-4)


@pytest.mark.parametrize("name", ["concrete", "energy", "naval", "power-plant", "wine-red", "protein"])
def test_tables_are_complete_and_constant_columns_stay_quiet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = need(name, monkeypatch)
    last = 4 if name == "protein" else 19
    train, test = load(name, split=last)
    assert len(train) + len(test) == next(entry.rows for entry in list_data_sets() if entry.name == name)
    assert train.y.shape == (len(train), 1)
    assert len(train.info.features) == train.x.shape[1]
    if (place / "index_features.txt").is_file():
        assert train.x.shape[1] == len(np.loadtxt(place / "index_features.txt"))
        assert int(np.loadtxt(place / "index_target.txt")) == train.x.shape[1]
    deviation = train.x.std(0, correction=0)
    assert ((deviation - 1.0).abs() < 1e-3).logical_or(deviation < 1e-6).all()
    assert (deviation < 1e-6).sum() == (2 if name == "naval" else 0)
    with pytest.raises(ArgumentError, match="standard splits"):
        load(name, split=last + 1)


def test_a_table_from_the_authors_repository_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, folder = need("energy", monkeypatch), tmp_path
    place = folder / "UCI_Datasets" / "energy" / "data"
    place.mkdir(parents=True)
    (place / "data.txt").write_bytes(lzma.decompress((source / "data.txt.xz").read_bytes()))
    monkeypatch.setenv("TEMPERANCE_DATA", str(folder))
    assert load("energy")[0].x.shape == (691, 8)
    assert verify("energy")[0].status == "ok"
    shutil.rmtree(place)
    assert verify("energy")[0].status == "missing"
