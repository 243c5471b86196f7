#!/bin/sh
# Measures the tables of docs/results.md, hours of them. Rerun to resume after the last finished cell.
#
#   IMAGES=folder WEIGHTS=folder scripts/results.sh [GROUP …]
#
# IMAGES holds CIFAR-10 and Fashion-MNIST (`spikecal datasets get … --data-root`), the photographs of BCCD in `bccd` and
# those of bench/imagenet_samples.py in `imagenet-samples`, which names two packages that the group imagenet needs;
# WEIGHTS holds the networks that are not embedded (default: `weights`). Groups can run side by side. Cells of networks and
# rows that several groups have are measured once.
set -eu
ROOT=$(realpath "$(dirname "$0")/..")
OUT=$(realpath "${OUT:-docs/results}")
WEIGHTS=$(realpath "${WEIGHTS:-weights}")
cd "${IMAGES:-.}"

table() { # GROUP TABLE OPTION …
    group=$1 name=$2
    shift 2
    mkdir -p "$OUT/cells" "$OUT/$group"
    [ -e "$OUT/$group/cells" ] || ln -s ../cells "$OUT/$group/cells"
    ${PYTHON:-python} -m spikecal.cli.main reproduce "$name" -o "$OUT/$group" --data-root . "$@"
}

bn="--weights vgg16-half=$WEIGHTS/vgg16-half.safetensors"
plain="--weights vgg16-half-nobn=$WEIGHTS/vgg16-half-nobn.safetensors"
halves="--model vgg16-half --model vgg16-half-nobn $bn $plain"
few="--images 250 --iterations 100" # test images, and iterations of weights calibration
fewer="--images 150 --iterations 100 --weights-images 128"

[ $# -gt 0 ] || set -- defaults ablations resnet20 rivals wide vgg16-half time detect detectors fakedata imagenet \
    frontier frontier-high latency frontier-vgg frontier-deep frontier-wide frontier-small frontier-imagenet
for group; do
    case $group in
    defaults)
        for name in time space; do table defaults $name; done
        table defaults samples --data cifar10 --seeds 5 $few
        ;;
    ablations) # ResNet-20 and half VGG-16
        table ablations clipround $plain --data cifar10 --seeds 2 $fewer
        table ablations threshold $plain --data cifar10 --seeds 2 $fewer
        table ablations bn $bn $plain --data cifar10 --seeds 2 $fewer
        table ablations lcp $bn --data cifar10 --seeds 2 $fewer
        table ablations acp $bn --data cifar10 --seeds 2 $fewer
        ;;
    resnet20)
        table resnet20 cifar --model resnet20 --model resnet20-nobn --data cifar10 --images 10000 --long-images 1000
        ;;
    rivals) # most of them are run once, for 512 steps
        table rivals cifar --rivals --row Robust-Norm --row Spike-Norm --row RMP --row TSC --row "Local balancing" \
            --row "Hybrid Train" --row QCFS --model resnet20-nobn --data cifar10 --seeds 1 --images 100 \
            --long-images 100 --long-calibration 16 --iterations 600
        ;;
    wide) # the paper's own network
        table wide cifar --model resnet20-wide --weights "$WEIGHTS/resnet20-wide.safetensors" --data cifar10 --seeds 1 \
            -T 4 -T 8 -T 16 -T 32 $few
        ;;
    vgg16-half)
        table vgg16-half cifar $halves --data cifar10 -T 4 -T 8 -T 16 -T 32 --seeds 1 $few
        ;;
    time) # of the paper's network; nothing else should run beside it
        table time time --model vgg16 -T 64 --seeds 1 --data demo
        ;;
    detect)
        table detect detect --data voc:bccd
        ;;
    detectors)
        table detectors detect --data voc:bccd --seeds 1 --iterations 100 --weights-images 32 -T 8 -T 16 -T 32 -T 64 --model retinanet-r18-quarter \
            --model fasterrcnn-r18-quarter --weights "fasterrcnn-r18-quarter=$WEIGHTS/fasterrcnn-r18-quarter.safetensors" \
            --model retinanet-r50-quarter --weights "retinanet-r50-quarter=$WEIGHTS/retinanet-r50-quarter.safetensors"
        ;;
    fakedata)
        table fakedata fakedata --with "vgg16-half=$WEIGHTS/vgg16-half.safetensors"
        ;;
    frontier)
        table frontier frontier --data cifar10 --images 1000
        ;;
    frontier-high)
        table frontier-high frontier --effort high --row "AUTO, high effort" --row "AUTO, high effort, latency T+10" \
            --data cifar10 --images 1000 -T 4 -T 8
        ;;
    latency)
        table latency latency --data cifar10 --images 1000
        ;;
    frontier-vgg)
        table frontier-vgg frontier --model vgg16-half $bn --data cifar10 --images 500 --waits 7
        ;;
    frontier-deep)
        table frontier-deep frontier --model resnet56 --weights "resnet56=$WEIGHTS/resnet56.safetensors" \
            --data cifar10 --images 500 --waits 24 -T 8 -T 16 -T 32
        ;;
    frontier-wide)
        table frontier-wide frontier --model resnet20-wide --weights "resnet20-wide=$WEIGHTS/resnet20-wide.safetensors" \
            --data cifar10 -T 4 -T 8 -T 16 -T 32
        ;;
    frontier-small) # networks that nothing was tuned on
        small=
        for name in mobilenet mnasnet preact densenet plain inception; do
            small="$small --model bench/small_networks.py:$name"
            small="$small --weights bench/small_networks.py:$name=$WEIGHTS/$name.safetensors"
        done
        images=$PWD
        (
            cd "$ROOT" # pages name the file as it is given
            table frontier-small frontier $small --data cifar10 --data-root "$images" -T 8
        )
        ;;
    frontier-imagenet) # low effort, as passes at 224 pixels take long
        samples=bench/imagenet_samples.py
        export IMAGENET_SAMPLES="$PWD/imagenet-samples"
        (
            cd "$ROOT" # pages name the file as it is given
            table frontier-imagenet frontier --model $samples:efficientnet_lite0 --data $samples:photographs --effort low \
                --row LCP --row PC --row "AUTO, low effort" --row "AUTO, low effort, latency T+33" --waits 33 \
                -T 32 -T 64 --images 40
        )
        ;;
    imagenet)
        samples=bench/imagenet_samples.py
        export IMAGENET_SAMPLES="$PWD/imagenet-samples"
        (
            cd "$ROOT" # pages name the file as it is given
            table imagenet imagenet --model $samples:efficientnet_lite0 --data $samples:photographs --seeds 1 \
                -T 16 -T 32 -T 64 -T 128 -T 256 --images 40 --calibration 32 --iterations 100 --weights-to 64 \
                --long-from 128 --long-images 16 --long-calibration 16
        )
        ;;
    *)
        echo "no group $group: defaults, ablations, resnet20, rivals, wide, vgg16-half, time, detect, detectors, fakedata, imagenet," \
            "frontier, frontier-high, latency, frontier-vgg, frontier-deep, frontier-wide, frontier-small or frontier-imagenet" >&2
        exit 2
        ;;
    esac
done
