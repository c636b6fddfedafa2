# The program alone. In the root of the repository, after `cargo xtask release --dry-run VERSION`:
#
#     docker build -f packaging/container/distroless.Dockerfile --build-arg VERSION=0.1.0 -t rdzv .
FROM gcr.io/distroless/static-debian12:nonroot
ARG VERSION
# Docker unpacks the archive: its folder becomes /opt/rdzv-VERSION-x86_64-linux.
ADD target/release-files/rdzv-${VERSION}-x86_64-linux.tar.gz /opt/
ENV PATH=/opt/rdzv-${VERSION}-x86_64-linux/bin:/usr/bin:/bin
ENTRYPOINT ["rdzv"]
