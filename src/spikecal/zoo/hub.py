"""The packages' own weights, fetched to where each package looks for them, whole and verified or not at all."""

import hashlib
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch

from spikecal.data.download import TIMEOUT, Checksum, download
from spikecal.errors import ConfigError, DataError, first_line

logger = logging.getLogger(__name__)

FORCED, FORBIDDEN = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class NotFetched(Exception):
    """Why a file could not be fetched, in a few words."""


class Beginning(Checksum):
    """The start of a file's digest, as in its name."""

    def matches(self, path: Path) -> bool:
        with path.open("rb") as file:
            return hashlib.file_digest(file, self.algorithm).hexdigest().startswith(self.digest)


@contextmanager
def only_weights() -> Iterator[None]:
    """Keep `torch.load` from running code in files, however a package calls it."""
    before = {name: os.environ.pop(name, None) for name in (FORCED, FORBIDDEN)}
    os.environ[FORCED] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def from_torch_hub(url: str) -> Path:
    """A file in torch.hub's folder, where torchvision looks; its name ends with the start of its SHA-256."""
    name = Path(urlparse(url).path).name
    path = Path(torch.hub.get_dir(), "checkpoints", name)
    if not path.is_file():
        digest = re.search(r"-([0-9a-f]{8,})\.[a-z]+$", name)
        fetch(url, path, Beginning("sha256", digest[1] if digest else ""))
    return path


def from_pytorchcv(name: str) -> Path:
    """A file in pytorchcv's folder; published as the only member of a zip."""
    store = import_module("pytorchcv.models.common.model_store")
    try:
        error, digest, release = store.get_model_name_suffix_data(name)
    except ValueError as missing:
        raise NotFetched("pytorchcv has none for this model") from missing
    if "NA" in (error, digest, release):
        raise NotFetched("pytorchcv has none for this model")
    path = Path("~/.torch/models").expanduser() / f"{name}-{error}-{digest[:8]}.pth"
    if not path.is_file() or not Checksum("sha1", digest).matches(path):
        url = f"{store.imgclsmob_repo_url}/releases/download/{release}/{path.name}.zip"
        fetch(url, path, Checksum("sha1", digest), member=path.name)
    return path


def from_hugging_face(repository: str, filename: str | None) -> Path:
    """A file in Hugging Face's cache, where timm looks; safetensors if available."""
    hub = import_module("huggingface_hub")
    repository, _, revision = repository.partition("@")
    names = [filename] if filename else ["model.safetensors", "pytorch_model.bin"]
    for name in names:
        cached = hub.try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    for name in names:
        # Try first with our own timeout: offline, the hub's client would keep trying for most of a minute.
        if _exists(hub.hf_hub_url(repository, name, revision=revision or None)):
            try:
                return Path(hub.hf_hub_download(repository, name, revision=revision or None))
            except Exception as error:  # network, disk, permissions: many classes of several libraries
                raise NotFetched(first_line(error)) from error
    raise NotFetched(f"{repository} has none of {', '.join(names)}")


def _exists(url: str) -> bool:
    try:
        with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT):
            return True
    except HTTPError as error:
        if error.code == 404:
            return False
        raise NotFetched(_reason(error, url)) from error
    except (OSError, HTTPException) as error:
        raise NotFetched(_reason(error, url)) from error


def fetch(url: str, path: Path, checksum: Checksum, member: str | None = None) -> None:
    """Download `url`, or the `member` of that zip, to `path`."""
    logger.info("fetching %s", url)
    try:
        if member is None:
            download(url, path, checksum)
        else:
            archive = path.with_name(f"{path.name}.zip")
            download(url, archive, Beginning("sha1", ""))  # its content is verified below
            _unpack(archive, member, path, checksum)
    except DataError as error:
        raise NotFetched(f"{urlparse(url).hostname}: {error}") from error


def _unpack(archive: Path, member: str, path: Path, checksum: Checksum) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(member) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
        if not checksum.matches(part):
            raise DataError(f"sent a different {member}: its {checksum.algorithm} is not {checksum.digest}")
        os.replace(part, path)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{archive.name} cannot be unpacked: {first_line(error)}") from error
    finally:
        part.unlink(missing_ok=True)
        archive.unlink(missing_ok=True)


def _reason(error: Exception, url: str) -> str:
    told = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    return f"{urlparse(url).hostname}: {str(told).strip() or type(told).__name__}"


def unreachable(spec: str, error: NotFetched) -> ConfigError:
    return ConfigError(f"the weights of {spec} cannot be fetched ({error}): give --weights FILE")
