"""Models of torchvision and timm as models of fedvg_jax, and back, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvg_jax.core.types import Batch, UsageError

torch = pytest.importorskip("torch", reason="needs the extra torch")
from torch import nn  # noqa: E402

from fedvg_jax.integrations import torch as fedvg_torch  # noqa: E402

pytestmark = pytest.mark.slow


class Block(nn.Module):
    """torchvision's basic block."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet18(nn.Module):
    """torchvision's ResNet-18, with its names."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [64, 64, 128, 256, 512]
        for i in range(1, 5):
            blocks = Block(widths[i - 1], widths[i], 1 if i == 1 else 2), Block(widths[i], widths[i], 1)
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def torchvision_model(name):
    return getattr(pytest.importorskip("torchvision").models, name)(num_classes=7)


def timm_model(name):
    return pytest.importorskip("timm").create_model(name, num_classes=7)


CASES = {
    "ResNet-18 of this file": (lambda: ResNet18(7), "resnet18", 64, None),
    "torchvision resnet18": (lambda: torchvision_model("resnet18"), "resnet18", 64, None),
    "torchvision resnet50": (lambda: torchvision_model("resnet50"), "resnet50", 64, None),
    "torchvision vit_b_16": (lambda: torchvision_model("vit_b_16"), "vit_b16", 224, "torchvision"),
    "timm vit_small_patch16_224": (lambda: timm_model("vit_small_patch16_224"), "vit_s16", 224, "timm"),
    "timm vit_base_patch16_224": (lambda: timm_model("vit_base_patch16_224"), "vit_b16", 224, "timm"),
}
"""Case -> (module, architecture, pixels, library)."""


def with_random_values(module):
    """Returns the module with scales, statistics and embeddings that are not at special values."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point() and tensor.ndim == 1:
                tensor.add_(torch.rand(tensor.shape, generator=generator) / 5)
    return module.eval()


@pytest.mark.parametrize("case", CASES)
def test_model_has_equal_logits_and_returns_bit_for_bit(case):
    make, architecture, pixels, library = CASES[case]
    torch.manual_seed(0)
    module = with_random_values(make())
    task, variables = fedvg_torch.from_module(module, architecture, (pixels, pixels, 3))
    images = np.random.default_rng(0).random((2, pixels, pixels, 3), np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    logits = jax.jit(task.predict)(*variables, Batch(jnp.asarray(images), jnp.zeros(2, jnp.int32)))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    state, back = module.state_dict(), fedvg_torch.to_state_dict(variables, architecture, library)
    assert back.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in back.items() if tensor.is_floating_point())
    module.load_state_dict(back)


def test_module_of_another_architecture_is_refused_with_its_first_tensor():
    with pytest.raises(UsageError, match=r"ResNet18.state_dict\(\): tensor .*, resnet50 needs \["):
        fedvg_torch.from_module(ResNet18(7), "resnet50", (32, 32, 3))
    _, variables = fedvg_torch.from_module(ResNet18(7), "resnet18", (32, 32, 3))
    with pytest.raises(UsageError, match="unknown library 'keras'; there are torchvision, timm"):
        fedvg_torch.to_state_dict(variables, "resnet18", "keras")
