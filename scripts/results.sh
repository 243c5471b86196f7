#!/bin/sh
# Measures the tables of docs/results.md, hours of them. Killed, the same command goes on after the last finished cell.
#
#   IMAGES=folder WEIGHTS=folder scripts/results.sh [GROUP …]
#
# IMAGES holds CIFAR-10 and Fashion-MNIST (`spikecal datasets get … --data-root`) and the photographs of BCCD in `bccd`;
# WEIGHTS holds the networks of docs/training.md that are not embedded. Groups can run side by side.
set -eu
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

[ $# -gt 0 ] || set -- defaults resnet20 vgg16-half vgg16 detect detectors fakedata
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
    detectors)
        table detectors detect --data voc:bccd --seeds 1 -T 8 -T 16 -T 32 -T 64 --model retinanet-r18-quarter \
            --model fasterrcnn-r18-quarter --weights "fasterrcnn-r18-quarter=$WEIGHTS/fasterrcnn-r18-quarter.safetensors" \
            --model retinanet-r50-quarter --weights "retinanet-r50-quarter=$WEIGHTS/retinanet-r50-quarter.safetensors"
        ;;
    fakedata)
        table fakedata fakedata --with "vgg16-half=$WEIGHTS/vgg16-half.safetensors"
        ;;
    *)
        echo "no group $group: defaults, resnet20, vgg16-half, vgg16, detect, detectors or fakedata" >&2
        exit 2
        ;;
    esac
done
