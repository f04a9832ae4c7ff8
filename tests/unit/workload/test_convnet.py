"""Decides whether the convolutional networks have the published numbers of parameters, to the last one."""

from __future__ import annotations

from suite.workload.convnet import convolution, linear, norm, parameters, vgg_19, wide_resnet_101


def test_layers_by_hand() -> None:
    assert convolution(3, 8, 5, bias=False) == 3 * 8 * 25
    assert convolution(3, 8, 5, bias=True) == 3 * 8 * 25 + 8
    assert linear(4, 7) == 35
    assert norm(6) == 12


def test_vgg_19() -> None:
    layers = vgg_19()
    assert len(layers) == 16 + 3
    assert layers[0] == ("conv 0.0", 3 * 64 * 9 + 64)
    assert layers[-3] == ("linear 0", 512 * 7 * 7 * 4096 + 4096)
    assert parameters(layers) == 143_667_240  # torchvision's vgg19
    assert parameters(layers) - parameters(vgg_19(classes=10)) == 990 * 4097


def test_wide_resnet_101() -> None:
    layers = wide_resnet_101()
    assert len(layers) == 1 + 33 + 1
    assert layers[0] == ("stem", 3 * 64 * 49 + 128)
    # 64 channels to 128, 128, 256 and straight to 256
    first = 64 * 128 + 128 * 128 * 9 + 128 * 256 + 64 * 256 + 2 * (128 + 128 + 256 + 256)
    assert layers[1] == ("block 0.0", first)
    assert parameters(layers) == 126_886_696  # torchvision's wide_resnet101_2
    assert parameters(wide_resnet_101(widen=1)) == 44_549_160  # torchvision's resnet101
