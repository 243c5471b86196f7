#!/bin/sh
# Measures the tables of docs/results.md, hours of them. Killed, the same command goes on after the last finished cell.
#
#   IMAGES=folder WEIGHTS=folder scripts/results.sh [GROUP …]
#
# IMAGES holds CIFAR-10 and Fashion-MNIST (`spikecal datasets get … --data-root`), the photographs of BCCD in `bccd` and
# those of bench/imagenet_samples.py in `imagenet-samples`, which names two packages that the group imagenet needs;
# WEIGHTS holds the networks of docs/training.md that are not embedded. Groups can run side by side.
set -eu
ROOT=$(realpath "$(dirname "$0")/..")
OUT=$(realpath "${OUT:-docs/results}")
WEIGHTS=$(realpath "${WEIGHTS:-weights}")
cd "${IMAGES:-.}"

table() { # GROUP TABLE OPTION …
    group=$1 name=$2
    shift 2
    ${PYTHON:-python} -m spikecal.cli.main reproduce "$name" -o "$OUT/$group" --data-root . "$@"
}

half="--model vgg16-half --weights vgg16-half=$WEIGHTS/vgg16-half.safetensors"
plain="--model vgg16-half-nobn --weights vgg16-half-nobn=$WEIGHTS/vgg16-half-nobn.safetensors"

[ $# -gt 0 ] || set -- defaults resnet20 vgg16-half vgg16 detect fakedata imagenet
for group; do
    case $group in
    defaults)
        for name in clipround bn lcp acp time space samples; do table defaults $name; done
        table defaults threshold -T 4 -T 8 -T 16 -T 32
        ;;
    resnet20)
        table resnet20 cifar --model resnet20 --model resnet20-nobn --data cifar10 --images 10000 --long-images 1000
        ;;
    vgg16-half)
        table vgg16-half cifar $half $plain --data cifar10 --images 2000 -T 4 -T 8 -T 16 -T 32
        table vgg16-half bn $half $plain --data cifar10 --images 2000
        table vgg16-half samples $plain --data cifar10 --images 2000
        ;;
    vgg16)
        table vgg16 cifar --model vgg16 --weights "vgg16=$WEIGHTS/vgg16.safetensors" --data cifar10 --seeds 1 \
            -T 4 -T 8 -T 16 -T 32
        ;;
    detect)
        table detect detect --data voc:bccd
        ;;
    fakedata)
        table fakedata fakedata --with "vgg16-half=$WEIGHTS/vgg16-half.safetensors"
        ;;
    imagenet)
        samples=bench/imagenet_samples.py
        export IMAGENET_SAMPLES="$PWD/imagenet-samples"
        (
            cd "$ROOT" # pages name the file as it is given
            table imagenet imagenet --model $samples:efficientnet_lite0 --data $samples:photographs --images 250 --seeds 1 \
                -T 16 -T 32 -T 64 -T 128 -T 256 --long-from 128 --long-images 100 --long-calibration 128 \
                --iterations 100 --weights-to 64
        )
        ;;
    *)
        echo "no group $group: defaults, resnet20, vgg16-half, vgg16, detect, fakedata or imagenet" >&2
        exit 2
        ;;
    esac
done
