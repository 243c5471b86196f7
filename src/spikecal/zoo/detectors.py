"""Detectors by name: RetinaNet and Faster R-CNN on a ResNet with a feature pyramid, the paper's and small ones."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spikecal.devices import Device, device_of
from spikecal.errors import ConfigError, FileError
from spikecal.usercode import is_factory
from spikecal.vision import vision
from spikecal.zoo.models import EMBEDDED, build_model, load_model
from spikecal.zoo.weights import UNNEEDED, put_weights, read_weights

COCO_LABELS = 91
DETECTION = "torchvision.models.detection"
BODIES = ("body", "features")  # attributes of torchvision's backbones: in pyramids, and in SSD
OWN = "name the part to convert in its attribute `spiking_body` (docs/how-to/detection.md#your-own-network)"
ANCHORS = (16, 32, 64, 128, 256)  # of the small detectors: at 320 pixels, objects are half as large as at 640
RATIOS = (0.5, 1.0, 2.0)
DEPTHS = {18: ("BasicBlock", (2, 2, 2, 2)), 50: ("Bottleneck", (3, 4, 6, 3))}  # a ResNet's blocks, stage by stage
# the tensor whose length tells how many labels a checkpoint has, and its entries per label
OUTPUTS = {"head.classification_head.cls_logits.bias": 3 * len(RATIOS), "roi_heads.box_predictor.cls_score.bias": 1}


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A detector of the zoo; `make` takes the number of labels, including the background."""

    about: str
    make: Callable[[int], nn.Module]
    size: tuple[int, int]  # the shorter side is scaled to the first, the longer to at most the second
    labels: int = COCO_LABELS
    pretrained: bool = False  # whether its recipe starts from a trained, partly frozen body


def body(width: int, depth: int = 18) -> nn.Module:
    """A ResNet with `width`, then two, four and eight times as many channels, with torchvision's names."""
    resnet = vision("torchvision.models.resnet")
    kind, counts = DEPTHS[depth]
    block = getattr(resnet, kind)

    def layer(inputs: int, channels: int, count: int, stride: int) -> nn.Sequential:
        outputs = channels * block.expansion
        shortcut = None
        if stride > 1 or inputs != outputs:
            shortcut = nn.Sequential(resnet.conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
        first = block(inputs, channels, stride, shortcut)
        return nn.Sequential(first, *(block(outputs, channels) for _ in range(count - 1)))

    parts: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        "bn1": nn.BatchNorm2d(width),
        "relu": nn.ReLU(inplace=True),
        "maxpool": nn.MaxPool2d(3, stride=2, padding=1),
        "layer1": layer(width, width, counts[0], 1),
    }
    wide = width * block.expansion
    parts |= {f"layer{i + 2}": layer(wide << i, width << i + 1, counts[i + 1], 2) for i in range(3)}
    made = nn.Sequential(OrderedDict(parts))
    for module in made.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return made


def _pyramid(width: int, channels: int, layers: tuple[int, ...], extra: Any, depth: int = 18) -> nn.Module:
    """The body with a feature pyramid on some of its layers, with BN, as it is trained from scratch."""
    utils = vision(f"{DETECTION}.backbone_utils")
    returned = {f"layer{layer}": str(i) for i, layer in enumerate(layers)}
    expansion = getattr(vision("torchvision.models.resnet"), DEPTHS[depth][0]).expansion
    inputs = [width * expansion << layer - 1 for layer in layers]
    made: nn.Module = utils.BackboneWithFPN(body(width, depth), returned, inputs, channels, extra, nn.BatchNorm2d)
    return made


def small_retinanet(width: int, channels: int, labels: int, depth: int = 18) -> nn.Module:
    """Pyramid levels 3 to 7, nine anchors per position; 240 by 320 pixels."""
    retinanet, pyramid = vision(f"{DETECTION}.retinanet"), vision("torchvision.ops.feature_pyramid_network")
    sizes = tuple((s, int(s * 2 ** (1 / 3)), int(s * 2 ** (2 / 3))) for s in ANCHORS)
    anchors = vision(f"{DETECTION}.anchor_utils").AnchorGenerator(sizes, (RATIOS,) * len(sizes))
    norm = partial(nn.GroupNorm, 16)
    made: nn.Module = retinanet.RetinaNet(
        _pyramid(width, channels, (2, 3, 4), pyramid.LastLevelP6P7(channels, channels), depth),
        labels,
        min_size=SMALL[0],
        max_size=SMALL[1],
        anchor_generator=anchors,
        head=retinanet.RetinaNetHead(channels, anchors.num_anchors_per_location()[0], labels, norm),
    )
    return made


def small_faster_rcnn(width: int, channels: int, labels: int) -> nn.Module:
    """Pyramid levels 2 to 6, three anchors per position, 300 proposals; 240 by 320 pixels."""
    rcnn, pyramid = vision(f"{DETECTION}.faster_rcnn"), vision("torchvision.ops.feature_pyramid_network")
    sizes = tuple((s,) for s in ANCHORS)
    features = 4 * channels
    made: nn.Module = rcnn.FasterRCNN(
        _pyramid(width, channels, (1, 2, 3, 4), pyramid.LastLevelMaxPool()),
        min_size=SMALL[0],
        max_size=SMALL[1],
        rpn_anchor_generator=vision(f"{DETECTION}.anchor_utils").AnchorGenerator(sizes, (RATIOS,) * len(sizes)),
        rpn_pre_nms_top_n_train=500,
        rpn_pre_nms_top_n_test=500,
        rpn_post_nms_top_n_train=300,
        rpn_post_nms_top_n_test=300,
        rpn_batch_size_per_image=128,
        box_batch_size_per_image=128,
        box_head=rcnn.TwoMLPHead(channels * 7 * 7, features),
        box_predictor=rcnn.FastRCNNPredictor(features, labels),
    )
    return made


def _resnet50(layers: tuple[int, ...], extra: Any) -> nn.Module:
    """As in the paper: BN frozen everywhere, and stem and first stage, too."""
    utils, misc = vision(f"{DETECTION}.backbone_utils"), vision("torchvision.ops.misc")
    made: nn.Module = utils.resnet_fpn_backbone(
        backbone_name="resnet50",
        weights=None,
        norm_layer=misc.FrozenBatchNorm2d,
        trainable_layers=3,
        returned_layers=list(layers),
        extra_blocks=extra,
    )
    return made


def retinanet_r50(labels: int) -> nn.Module:
    extra = vision("torchvision.ops.feature_pyramid_network").LastLevelP6P7(256, 256)
    made: nn.Module = vision(f"{DETECTION}.retinanet").RetinaNet(_resnet50((2, 3, 4), extra), labels)
    return made


def faster_rcnn_r50(labels: int) -> nn.Module:
    made: nn.Module = vision(f"{DETECTION}.faster_rcnn").FasterRCNN(_resnet50((1, 2, 3, 4), None), labels)
    return made


SMALL, LARGE = (240, 320), (800, 1333)
BCCD_LABELS = 4

DETECTORS: dict[str, Detector] = {
    "retinanet-r50": Detector(
        about="RetinaNet, ResNet-50 FPN, BN frozen, as in the paper", make=retinanet_r50, size=LARGE, pretrained=True
    ),
    "fasterrcnn-r50": Detector(
        about="Faster R-CNN, ResNet-50 FPN, BN frozen, as in the paper",
        make=faster_rcnn_r50,
        size=LARGE,
        pretrained=True,
    ),
    "retinanet-r18": Detector(
        about="RetinaNet, ResNet-18 FPN", make=partial(small_retinanet, 64, 256), size=SMALL, labels=BCCD_LABELS
    ),
    "fasterrcnn-r18": Detector(
        about="Faster R-CNN, ResNet-18 FPN", make=partial(small_faster_rcnn, 64, 256), size=SMALL, labels=BCCD_LABELS
    ),
    "retinanet-r18-quarter": Detector(
        about="RetinaNet, ResNet-18 FPN with a quarter of the channels, 64 in the pyramid",
        make=partial(small_retinanet, 16, 64),
        size=SMALL,
        labels=BCCD_LABELS,
    ),
    "retinanet-r50-quarter": Detector(
        about="RetinaNet, ResNet-50 FPN with a quarter of the channels, 64 in the pyramid",
        make=partial(small_retinanet, 16, 64, depth=50),
        size=SMALL,
        labels=BCCD_LABELS,
    ),
    "fasterrcnn-r18-quarter": Detector(
        about="Faster R-CNN, ResNet-18 FPN with a quarter of the channels, 64 in the pyramid",
        make=partial(small_faster_rcnn, 16, 64),
        size=SMALL,
        labels=BCCD_LABELS,
    ),
}


def is_detector(spec: str) -> bool:
    """Whether a name alone identifies a detector: of the zoo or torchvision."""
    package, _, name = spec.partition(":")
    if package != "torchvision" or not name:
        return spec in DETECTORS
    if find_spec("torchvision") is None:
        return False
    models = vision("torchvision.models")
    name = name.partition(".")[0]
    return name in models.list_models(module=models.detection)


def build_detector(spec: str, labels: int | None = None) -> nn.Module:
    """A detector without trained weights, for `labels` labels if it is the zoo's."""
    if spec in DETECTORS:
        entry = DETECTORS[spec]
        return entry.make(entry.labels if labels is None else labels).eval()
    if not is_detector(spec) and not is_factory(spec):
        raise ConfigError(
            f"there is no detector {spec!r}: give {', '.join(DETECTORS)}, torchvision:NAME or file.py:function"
        )
    return checked(spec, build_model(spec)[0])


def load_detector(spec: str, weights: str | Path | None = None, device: Device = None) -> nn.Module:
    """A trained detector in eval mode: with `weights`, or its own; on `device`, if given.

    `spec` is what `spikecal convert --task detect` takes: `retinanet-r18-quarter`, `torchvision:NAME`,
    `file.py:function`.
    """
    home = device_of(device)
    detector = _loaded(spec, None if weights is None else Path(weights))
    return detector if home is None else detector.to(home)


def _loaded(spec: str, weights: Path | None) -> nn.Module:
    if spec not in DETECTORS:
        if not is_detector(spec) and not is_factory(spec):
            build_detector(spec)  # raises with the known detectors
        return checked(spec, load_model(spec, weights)[0])
    if weights is not None:
        return _with_weights(spec, weights)
    if spec not in EMBEDDED:
        raise ConfigError(f"{spec} has no weights of its own here: give --weights FILE")
    with resources.as_file(resources.files("spikecal") / "demo" / EMBEDDED[spec]) as path:
        return _with_weights(spec, path)


def _with_weights(spec: str, path: Path) -> nn.Module:
    given = read_weights(path)
    counted = [len(given[name]) // each for name, each in OUTPUTS.items() if name in given and given[name].ndim == 1]
    if not counted:
        raise FileError(f"{path} is not a checkpoint of a RetinaNet or Faster R-CNN such as {spec}")
    model = build_detector(spec, counted[0])
    put_weights(model, given, path, spec)
    return model.eval()


def load_body(detector: nn.Module, given: dict[str, Tensor], source: str) -> None:
    """Start the body of a detector from a classifier's weights, without the last layer."""
    inside = body_of(detector)
    wanted = inside.state_dict()
    fitting = {key: value for key, value in given.items() if key in wanted and value.shape == wanted[key].shape}
    missing = [key for key in wanted if key not in fitting and not key.endswith(UNNEEDED)]
    if missing:
        raise FileError(f"{source} does not fit the detector's body: {missing[0]} and {len(missing) - 1} more missing")
    inside.load_state_dict(fitting, strict=False)


def body_place(detector: nn.Module) -> str:
    """The name of the part to convert: torchvision's, or the `spiking_body` of the user's own detector."""
    named = getattr(detector, "spiking_body", None)
    if isinstance(named, str) and named in dict(detector.named_modules()):
        return named
    backbone = getattr(detector, "backbone", None)
    place = next((name for name in BODIES if isinstance(getattr(backbone, name, None), nn.Module)), None)
    if named is not None or place is None or not hasattr(detector, "transform"):
        found = "is not one of torchvision's detectors" if named is None else f"has no part {named!r} to convert"
        raise ConfigError(f"{type(detector).__name__} {found}: {OWN}")
    return f"backbone.{place}"


def body_of(detector: nn.Module) -> nn.Module:
    """The part to convert."""
    return detector.get_submodule(body_place(detector))


def checked(spec: str, model: nn.Module) -> nn.Module:
    """The model, if it has a part to convert."""
    try:
        body_place(model)
    except ConfigError as error:
        raise ConfigError(f"{spec}: {error}") from error
    return model
