"""Train an image classifier on two replicas, with a DataLoader, accuracy and a progress bar."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from suite import Engine, Grid

CLASSES, SIDE, GRID = 4, 16, Grid(data=2)


def images(count, seed):
    """Noise with a bright stripe, whose direction and place are the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    pixels = torch.randn(count, 3, SIDE, SIDE, generator=generator)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        stripe = image if label < 2 else image.transpose(1, 2)
        stripe[:, 4 if label % 2 else 10] += 1.5
    return TensorDataset(pixels, labels)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.GroupNorm(4, 16), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.GroupNorm(4, 32), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, CLASSES)),
    )


def make_optimizer(weights):
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=1e-4)


def make_scheduler(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 45], 0.3)


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).float().mean()


def main(epochs=3, dtype=torch.float32, grid=GRID):
    training, validation = images(640, 0), images(100, 1)
    model = make_model().to(dtype)
    loader = DataLoader(training, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(2))
    arguments = {"optimizer": make_optimizer, "lr_scheduler": make_scheduler}
    scores = {"scores": accuracy, "score_names": ["accuracy"]}
    with Engine(model, loss=cross_entropy, microbatch=8, grid=grid, **arguments, **scores) as engine:
        losses = []
        for _ in range(epochs):
            losses += engine.fit(((x.to(dtype), y) for x, y in loader), progress=__name__ == "__main__")
        result = engine.score((x.to(dtype), y) for x, y in DataLoader(validation, batch_size=32))
    return losses, result


if __name__ == "__main__":
    losses, result = main()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, validation accuracy {result['accuracy']:.2f}")
