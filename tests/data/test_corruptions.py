from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from temperance.core.errors import ArgumentError, DataError
from temperance.data import corruptions as module
from temperance.data.catalog import load
from temperance.data.corruptions import CORRUPTIONS, corrupt

KINDS = list(CORRUPTIONS)


def pictures(count: int = 64, channels: int = 3, height: int = 32, width: int = 32) -> torch.Tensor:
    """Smooth coloured shapes with some texture, the kind of thing a camera sees."""
    rng = torch.Generator().manual_seed(5)
    coarse = torch.rand(count, channels, 6, 6, generator=rng)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0.0, 1.0)
    return (0.85 * smooth + 0.15 * torch.rand(smooth.shape, generator=rng)).clamp(0.0, 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["pictures", "oblong", "digits"])
def test_change_grows_with_severity_and_stays_in_range(kind: str, source: str) -> None:
    shape = None
    if source == "digits":
        data = load("digits")[1]
        x, shape = data.x, data.info.image_shape
    else:
        x = pictures() if source == "pictures" else pictures(width=48, channels=1)
    changes = []
    for severity in range(1, 6):
        out = corrupt(x, kind, severity, seed=1, image_shape=shape)
        assert out.shape == x.shape
        assert out.dtype == x.dtype
        assert float(out.min()) >= 0.0
        assert float(out.max()) <= 1.0
        changes.append(float((out - x).abs().mean()))
    assert changes[0] > 0.0
    assert all(weaker < stronger for weaker, stronger in pairwise(changes)), changes


@pytest.mark.parametrize("kind", KINDS)
def test_seed_decides_and_global_state_is_left_alone(kind: str) -> None:
    x = pictures(8)
    before = x.clone()
    torch.manual_seed(0)
    first = corrupt(x, kind, 3, seed=2)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(first, corrupt(x, kind, 3, 2))
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(x, before), "the input must not be written to"
    same = torch.equal(first, corrupt(x, kind, 3, seed=3))
    assert same == (kind in ("blur", "contrast", "brightness", "pixelate"))


@pytest.mark.parametrize("kind", KINDS)
def test_flat_rows_are_the_same_images(kind: str) -> None:
    x = pictures(4, channels=1, height=10, width=14)
    expected = corrupt(x, kind, 4, seed=7)
    flat = corrupt(x.flatten(1), kind, 4, seed=7, image_shape=(1, 10, 14))
    assert flat.shape == (4, 140)
    assert torch.equal(flat, expected.flatten(1))
    assert torch.equal(flat, corrupt(x.flatten(1), kind, 4, seed=7, image_shape=(10, 14)))
    assert torch.equal(CORRUPTIONS[kind](x, 4, seed=7), expected)
    assert getattr(module, kind) is CORRUPTIONS[kind]
    assert CORRUPTIONS[kind].__doc__


def test_rotation_keeps_shapes_in_oblong_images() -> None:
    """A square inside an oblong picture keeps its area and its centre when turned."""
    x = torch.zeros(2, 1, 40, 80)
    x[:, :, 14:26, 34:46] = 1.0
    out = module.rotate(x, 4)
    assert torch.allclose(out.sum(dim=(1, 2, 3)), x.sum(dim=(1, 2, 3)), rtol=0.02)
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(80.0), indexing="ij")
    for axis, centre in ((rows, 19.5), (columns, 39.5)):
        middle = (out[0, 0] * axis).sum() / out[0, 0].sum()
        spread = (out[0, 0] * (axis - centre) ** 2).sum() / out[0, 0].sum()
        assert abs(float(middle) - centre) < 0.05
        assert abs(float(spread) - (12**2 - 1) / 12) < 0.5, "second moments of a square do not change under rotation"


def test_blur_keeps_the_mean_of_a_constant_and_spreads_a_point() -> None:
    assert torch.allclose(module.blur(torch.full((1, 2, 8, 8), 0.3), 5), torch.tensor(0.3))
    point = torch.zeros(1, 1, 41, 41)
    point[0, 0, 20, 20] = 1.0
    out = module.blur(point, 3)[0, 0].double()
    offsets = torch.arange(41.0, dtype=torch.float64) - 20.0
    assert float(out.sum()) == pytest.approx(1.0, abs=1e-5)
    assert float((out.sum(0) * offsets**2).sum()) == pytest.approx(1.2**2, rel=0.02)


def test_pixels_become_averages_of_blocks() -> None:
    x = pictures(2, channels=2, height=10, width=15)
    out = module.pixelate(x, 5)
    assert torch.allclose(out[:, :, 5:, 10:].std(dim=(2, 3)), torch.zeros(2, 2), atol=1e-6)
    assert torch.allclose(out[:, :, 5, 10], x[:, :, 5:, 10:].mean(dim=(2, 3)))
    assert torch.allclose(module.pixelate(torch.ones(1, 1, 7, 7), 3), torch.ones(1, 1, 7, 7))


def test_noise_has_the_stated_spread() -> None:
    grey = torch.full((20, 1, 50, 50), 0.5)
    noise = module.gaussian_noise(grey, 2) - grey
    assert float(noise.std()) == pytest.approx(0.1, rel=0.02)
    counts = module.shot_noise(grey, 1) - grey
    assert float(counts.mean()) == pytest.approx(0.0, abs=0.003)
    assert float(counts.var()) == pytest.approx(0.5 / 60.0, rel=0.05)


def test_occlusion_hides_one_rectangle() -> None:
    hidden = module.occlude(torch.ones(50, 3, 20, 30), 3) == 0.0
    assert (hidden.sum(dim=(1, 2, 3)) == 3 * 8 * 12).all()
    assert hidden[:, 0].any(1).float().std(0).sum() > 0.0, "the place must vary"


def test_arguments_are_checked() -> None:
    x = pictures(2)
    for severity in (0, 6, 2.0, True, "3"):
        with pytest.raises(ArgumentError, match="`severity` must be an integer from 1 to 5"):
            corrupt(x, "blur", severity)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"`kind` must be one of gaussian_noise.*got 'fog'"):
        corrupt(x, "fog", 1)
    with pytest.raises(ArgumentError, match="`seed`"):
        corrupt(x, "blur", 1, seed=-1)
    with pytest.raises(ArgumentError, match="`image_shape` must be given"):
        corrupt(x.flatten(1), "blur", 1)
    with pytest.raises(ArgumentError, match=r"`image_shape` .*\(3072\)"):
        corrupt(x.flatten(1), "blur", 1, image_shape=(1, 32, 32))
    for wrong in (2.0 * x, x - 1.0, x * float("nan"), x[:0], (255 * x).to(torch.uint8)):
        with pytest.raises(DataError, match="`x` must"):
            corrupt(wrong, "blur", 1)
