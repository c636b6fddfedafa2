# rdzv and its Python package on top of a PyTorch image. In the root of the repository, after
# `cargo xtask release --dry-run VERSION`:
#
#     docker build -f packaging/container/pytorch.Dockerfile -t rdzv-pytorch .
ARG BASE=pytorch/pytorch:2.15.0-cuda13.0-cudnn9-runtime
FROM ${BASE}
RUN --mount=type=bind,source=target/release-files,target=/files \
    python3 -m pip install --no-cache-dir --no-index --no-deps /files/rdzv-*.whl
ENTRYPOINT ["rdzv"]
