# BASE: another name of the same image, where the public registry is out of reach.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# APT_CONF: lines of apt's configuration for the build alone (a proxy, for example).
ARG APT_CONF=""
# The packages first: they change least and take longest.
COPY deploy/install-deps /tmp/
RUN printf '%s\n' "${APT_CONF}" > /etc/apt/apt.conf.d/zz-build \
 && apt-get update \
 && /tmp/install-deps build \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cmake --preset release -DBUILD_TESTING=OFF \
 && cmake --build --preset release --target latchkey latchkeyd \
 && DESTDIR=/out cmake --install build/release --prefix /usr/local --strip

FROM ${BASE}
ARG APT_CONF=""
LABEL org.opencontainers.image.title="Latchkey" \
      org.opencontainers.image.description="Primary-key lookup service over gRPC" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY deploy/install-deps /tmp/
RUN printf '%s\n' "${APT_CONF}" > /etc/apt/apt.conf.d/zz-build \
 && apt-get update \
 && /tmp/install-deps run \
 && rm -rf /var/lib/apt/lists/* /etc/apt/apt.conf.d/zz-build /tmp/install-deps \
 && groupadd --system --gid 10001 latchkey \
 && useradd --system --uid 10001 --gid latchkey --no-create-home --home-dir /nonexistent \
      --shell /usr/sbin/nologin latchkey \
 && install -d -o latchkey -g latchkey /data
COPY --from=build /out/usr/local/ /usr/local/
# A library that the list above lacks shall fail here and not in service.
RUN latchkey --version && latchkeyd --version
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
# A new volume mounted here takes over the owner, so that `latchkey build` can write to it.
VOLUME /data
WORKDIR /data
EXPOSE 50051
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
  CMD ["latchkeyd", "healthcheck", "--server", "127.0.0.1:50051"]
ENTRYPOINT ["latchkeyd"]
CMD ["--data", "/data", "--listen", "0.0.0.0:50051"]
