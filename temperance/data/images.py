"""Image sets: the IDX files of MNIST and its relatives, and CIFAR-10 and -100 in each form in which people have them.

The python archive of CIFAR is a pickle, and a pickle is a program. It is read here by an unpickler that knows four
names, each bound to a class that only takes notes: no code of the archive, and none of numpy's, runs on its content.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from temperance.core.errors import DataError
from temperance.core.outcomes import Classes
from temperance.data.data import Data, DataInfo
from temperance.data.files import FileSet, KnownFile, check_digest, missing_error

Pixels = NDArray[np.uint8]

_IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_files(name: str, folders: tuple[str, ...], digests: dict[str, str], provide: str) -> FileSet:
    known = tuple(KnownFile(file, (f"sha256:{digest}",), (".gz", "")) for file, digest in digests.items())
    return FileSet(name, folders, known, provide)


IDX_FILES: dict[str, FileSet] = {
    "mnist": _idx_files(
        "mnist",
        ("mnist", "MNIST/raw"),
        {
            _IDX_NAMES[0]: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            _IDX_NAMES[1]: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            _IDX_NAMES[2]: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            _IDX_NAMES[3]: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        "the four *-ubyte.gz files from https://storage.googleapis.com/cvdf-datasets/mnist/.",
    ),
    "fashion-mnist": _idx_files(
        "fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw"),
        {
            _IDX_NAMES[0]: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            _IDX_NAMES[1]: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            _IDX_NAMES[2]: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            _IDX_NAMES[3]: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        "the four *-ubyte.gz files from https://github.com/zalandoresearch/fashion-mnist, folder data/fashion.",
    ),
    "notmnist": _idx_files(
        "notmnist",
        ("notmnist-test", "notmnist"),
        {
            _IDX_NAMES[2]: "8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
            _IDX_NAMES[3]: "5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001",
        },
        "the two t10k-*-ubyte.gz files from https://github.com/davidflanagan/notMNIST-to-MNIST.",
    ),
}
"""The sets in IDX format by name."""

_FINE = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"""
_COARSE = """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
vehicles_1 vehicles_2"""
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "notmnist": tuple("ABCDEFGHIJ"),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": tuple(_FINE.split()),
    "cifar100-coarse": tuple(_COARSE.split()),
}


def parse_idx(content: bytes, what: str) -> Pixels:
    """The array in an IDX file of unsigned bytes: two zeros, the type (8), the rank, the sizes, the values."""
    rank = content[3] if len(content) >= 4 and content[:3] == b"\x00\x00\x08" else 0
    shape = np.frombuffer(content, dtype=">u4", count=rank, offset=4) if len(content) >= 4 + 4 * rank else ()
    if rank == 0 or len(shape) != rank or len(content) != 4 + 4 * rank + int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{what}: must be an IDX file of unsigned bytes; got {len(content)} bytes of another kind.")
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * rank).reshape([int(size) for size in shape])


def read_idx(name: str) -> list[tuple[Pixels, Pixels]]:
    """Pairs of images (N × 28 × 28) and labels: the training and the test part, or the only one there is."""
    files = IDX_FILES[name]
    if files.where() is None:
        raise missing_error([files])
    arrays = [parse_idx(files.read(known.name), known.name) for known in files.files]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def load_idx(name: str, split: int, seed: int) -> tuple[Data, Data]:
    """Training and test part, N × 1 × 28 × 28 in [0, 1]. The last 2000 of notMNIST's 10000 are the test."""
    parts = read_idx(name)
    if len(parts) == 1:
        (images, labels), cut = parts[0], len(parts[0][0]) * 4 // 5
        parts = [(images[:cut], labels[:cut]), (images[cut:], labels[cut:])]
    train, test = (_image_data(name, images[:, None], labels) for images, labels in parts)
    return train, test


def _image_data(name: str, images: Pixels, labels: Pixels, note: str = "") -> Data:
    """Bytes (N × C × H × W) as ``Data`` in [0, 1]."""
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    classes = _CLASSES[name]
    info = DataInfo(
        name=name, outcome=Classes(), num_classes=len(classes), classes=classes, image_shape=shape, note=note
    )
    x = torch.from_numpy(images.astype(np.float32)).div_(255.0)
    return Data(x, torch.from_numpy(labels.astype(np.int64)), info=info)


_TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BATCHES = (*_TRAIN_BATCHES, "test_batch")
_CIFAR_DECODED = {  # sha256 of all pixels as N × H × W × C bytes, and of all labels, one byte each
    "train": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    "test": (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}
_CIFAR_PROVIDE = "cifar-10-binary.tar.gz (or cifar-10-python.tar.gz) from https://www.cs.toronto.edu/~kriz/cifar.html."


def _cifar_files(folders: tuple[str, ...], *files: KnownFile) -> FileSet:
    return FileSet("cifar10", folders, files, _CIFAR_PROVIDE)


_BINARY_ARCHIVE = _cifar_files(
    ("cifar10", "."), KnownFile("cifar-10-binary.tar.gz", ("md5:c32a1d4ab5d03f1284b67883e8d87530",))
)
_PYTHON_ARCHIVE = _cifar_files(
    ("cifar10", "."), KnownFile("cifar-10-python.tar.gz", ("md5:c58f30108f718f92721af3b95e74349a",))
)
_BINARY_FOLDER = _cifar_files(
    ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"), *(KnownFile(f"{name}.bin") for name in _BATCHES)
)
_PYTHON_FOLDER = _cifar_files(
    ("cifar10/cifar-10-batches-py", "cifar-10-batches-py"), *(KnownFile(name) for name in _BATCHES)
)
_MOSAICS = _cifar_files(
    ("cifar10",),
    KnownFile("labels.npz", ("sha256:100457827cb30b2869dbdce3761c5279714820de9a8c6fa4d0dcc7cbc3037527",)),
    KnownFile("data_batch_1.webp", ("sha256:0c540445580e2b4751a4fb5e79175f3eced765d47d186c46cf6aaa7a076c47d9",)),
    KnownFile("data_batch_2.webp", ("sha256:ecd97fbddf53a95c7a487a46490001fbae20af0d14e0978cf2a8c74001ef5eb5",)),
    KnownFile("test_batch.webp", ("sha256:ff9de491fc23a41297e1e58c42a552efb04f949758a185cc7541e5a51cf1c35f",)),
)
CIFAR_FILES = (_BINARY_FOLDER, _BINARY_ARCHIVE, _PYTHON_FOLDER, _PYTHON_ARCHIVE, _MOSAICS)
"""The forms in which CIFAR-10 is accepted, complete ones first."""


def cifar10_place() -> Path | None:
    """The folder in which CIFAR-10 was found, in whatever form."""
    return next((place for place in (files.where() for files in CIFAR_FILES) if place is not None), None)


def read_cifar10(*, _check: bool = True) -> tuple[tuple[Pixels, Pixels], tuple[Pixels, Pixels]]:
    """Images (N × 3 × 32 × 32) and labels of the training and of the test part. ``_check`` is for tests."""
    files = next((files for files in CIFAR_FILES if files.where() is not None), None)
    if files is None:
        raise missing_error(CIFAR_FILES)
    if files is _MOSAICS:
        train, test = _read_mosaics()
    else:
        python = files in (_PYTHON_FOLDER, _PYTHON_ARCHIVE)
        parse: Callable[[bytes, str], tuple[Pixels, Pixels]] = _parse_python if python else _parse_binary
        parsed = [parse(content, name) for name, content in _batches(files, _BATCHES, _check).items()]
        train = (np.concatenate([x for x, _ in parsed[:5]]), np.concatenate([y for _, y in parsed[:5]]))
        test = parsed[5]
    if _check:
        if files is not _MOSAICS:  # of the mosaics only two training batches exist, each with a checksum of its own
            _check_decoded("train", *train)
        _check_decoded("test", *test)
    return train, test


def load_cifar10(split: int, seed: int) -> tuple[Data, Data]:
    """Training and test part, N × 3 × 32 × 32 in [0, 1]; ``info.note`` says when not all training images are there."""
    train, test = read_cifar10()
    note = "" if len(train[1]) == 50000 else f"{len(train[1])} of the 50000 training images are there"
    return _image_data("cifar10", *train, note=note), _image_data("cifar10", *test, note=note)


def _check_decoded(part: str, images: Pixels, labels: Pixels) -> None:
    pixels, classes = _CIFAR_DECODED[part]
    check_digest(images.transpose(0, 2, 3, 1).tobytes(), pixels, f"CIFAR-10 {part} images (as N × H × W × C bytes)")
    check_digest(labels.tobytes(), classes, f"CIFAR-10 {part} labels")


_CIFAR100_EACH = {"train": 500, "test": 100}
"""Images of each class in each part."""
_CIFAR100_PROVIDE = _CIFAR_PROVIDE.replace("cifar-10-", "cifar-100-")


def _cifar100_files(folders: tuple[str, ...], *files: KnownFile) -> FileSet:
    return FileSet("cifar100", folders, files, _CIFAR100_PROVIDE)


CIFAR100_FILES = (
    _cifar100_files(("cifar100/cifar-100-binary", "cifar-100-binary"), KnownFile("train.bin"), KnownFile("test.bin")),
    _cifar100_files(("cifar100", "."), KnownFile("cifar-100-binary.tar.gz", ("md5:03b5dce01913d631647c71ecec9e9cb8",))),
    _cifar100_files(
        ("cifar100/cifar-100-python", "cifar-100-python"),
        KnownFile("train", ("md5:16019d7e3df5f24257cddd939b257f8d",)),
        KnownFile("test", ("md5:f0ef6b0ae62326f3e7ffdfab6717acfc",)),
    ),
    _cifar100_files(("cifar100", "."), KnownFile("cifar-100-python.tar.gz", ("md5:eb9058c3a382ffc7106e4002c42a8d85",))),
)
"""The forms in which CIFAR-100 is accepted."""


def cifar100_place() -> Path | None:
    """The folder in which CIFAR-100 was found, in whatever form."""
    return next((place for place in (files.where() for files in CIFAR100_FILES) if place is not None), None)


def read_cifar100(*, _check: bool = True) -> tuple[tuple[Pixels, Pixels], tuple[Pixels, Pixels]]:
    """Images (N × 3 × 32 × 32) and labels (N × 2, coarse and fine) of both parts. ``_check`` is for tests."""
    files = next((files for files in CIFAR100_FILES if files.where() is not None), None)
    if files is None:
        raise missing_error(CIFAR100_FILES)
    raw = _batches(files, ("train", "test"), _check)
    if "python" in files.folders[0] + files.files[0].name:
        columns = [[_parse_python(raw[part], part, f"{kind}_labels") for kind in ("coarse", "fine")] for part in raw]
        train, test = ((coarse[0], np.stack([coarse[1], fine[1]], 1)) for coarse, fine in columns)
    else:
        train, test = (_parse_binary(raw[part], part, labels=2) for part in raw)
    if _check:
        _check_cifar100("train", train[1])
        _check_cifar100("test", test[1])
    return train, test


def load_cifar100(split: int, seed: int, coarse: bool = False) -> tuple[Data, Data]:
    """Training and test part, N × 3 × 32 × 32 in [0, 1]: 100 classes, or their 20 groups with ``coarse``."""
    name, column = ("cifar100-coarse", 0) if coarse else ("cifar100", 1)
    train, test = (_image_data(name, images, labels[:, column]) for images, labels in read_cifar100())
    return train, test


def _check_cifar100(part: str, labels: Pixels) -> None:
    """The extracted records have no published digest: 100 classes of so many images, five to a group, are asked for."""
    each = _CIFAR100_EACH[part]
    coarse, fine = labels.T
    pairs = np.unique(coarse * np.int64(256) + fine)
    if not (
        np.array_equal(np.bincount(fine, minlength=100), [each] * 100)
        and np.array_equal(np.bincount(coarse, minlength=20), [5 * each] * 20)
        and len(pairs) == 100
    ):
        raise DataError(
            f"CIFAR-100 {part}: must hold {each} images of each of 100 classes, five classes to each of 20 groups; got "
            f"{len(labels)} images of {len(np.unique(fine))} classes in {len(np.unique(coarse))} groups."
        )


def _batches(files: FileSet, wanted: tuple[str, ...], check: bool) -> dict[str, bytes]:
    """Name and content of the batches of a folder, or of an archive, which is never extracted to disk."""
    if len(files.files) > 1:
        read = {known.name: files.read(known.name, check=check) for known in files.files}
        return {name.removesuffix(".bin"): content for name, content in read.items()}
    name = files.files[0].name
    content = files.read(name, check=check)
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                batch = member.name.rsplit("/", 1)[-1].removesuffix(".bin")
                if member.isfile() and batch in wanted:
                    stream = archive.extractfile(member)
                    assert stream is not None
                    found[batch] = stream.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{name}: must be a readable tar.gz archive; got {error}.") from error
    lacking = [batch for batch in wanted if batch not in found]
    if lacking:
        raise DataError(f"{name}: must hold {', '.join(wanted)}; got none called {lacking}.")
    return {batch: found[batch] for batch in wanted}


def _read_mosaics() -> tuple[tuple[Pixels, Pixels], tuple[Pixels, Pixels]]:
    """Lossless pictures of 100 × 100 tiles each, in reading order."""
    with np.load(io.BytesIO(_MOSAICS.read("labels.npz")), allow_pickle=False) as labels:
        train_labels, test_labels = labels["train"], labels["test"]

    def tiles(name: str) -> Pixels:
        with Image.open(io.BytesIO(_MOSAICS.read(name))) as picture:
            grid = np.asarray(picture.convert("RGB")).reshape(100, 32, 100, 32, 3)
        return grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)

    train = np.concatenate([tiles("data_batch_1.webp"), tiles("data_batch_2.webp")])
    return (train, train_labels[: len(train)]), (tiles("test_batch.webp"), test_labels)


def _parse_binary(content: bytes, name: str, labels: int = 1) -> tuple[Pixels, Pixels]:
    """Records of a label (or two: coarse, fine), then the red, green and blue planes, 3072 bytes."""
    size = 3072 + labels
    if not content or len(content) % size:
        raise DataError(f"{name}.bin: must be a whole number of records of {size} bytes; got {len(content)} bytes.")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    found = records[:, 0] if labels == 1 else records[:, :labels]
    return records[:, labels:].reshape(-1, 3, 32, 32), found


class _Note:
    """Stands in for numpy's array and dtype while unpickling: it keeps what it is given and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes into old pickles."""
    return text.encode("latin1")


class _NotingUnpickler(pickle.Unpickler):
    """Builds dicts, lists, strings and numbers; arrays become notes; any other name is refused."""

    _ALLOWED: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Note,
        ("numpy._core.multiarray", "_reconstruct"): _Note,
        ("numpy", "ndarray"): _Note,
        ("numpy", "dtype"): _Note,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that an array of bytes needs."""
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise DataError(f"the pickle asks for {module}.{name}, which a CIFAR batch does not need.") from None


def _parse_python(content: bytes, name: str, key: str = "labels") -> tuple[Pixels, Pixels]:
    """A dictionary with ``data`` (N × 3072 bytes) and labels under ``key``, pickled by Python 2."""
    try:
        batch = _NotingUnpickler(io.BytesIO(content), encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        _, shape, kind, fortran, raw = entries["data"].state
        if kind.arguments[0] not in (b"u1", "u1"):
            raise TypeError(f"an array of type {kind.arguments[0]!r}")
        pixels = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran else "C").reshape(-1, 3, 32, 32)
        labels = np.array(entries[key], dtype=np.uint8)
        if len(labels) != len(pixels):
            raise ValueError(f"{len(labels)} labels for {len(pixels)} images")
    except DataError as error:
        raise DataError(f"{name}: refused, because {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way; none of them is more than damage
        raise DataError(f"{name}: must be a pickled CIFAR batch; got {type(error).__name__}: {error}.") from error
    return pixels, labels
