# One image for the agent on every node and for the gate: `fabric-ready agent` (the default), `fabric-ready gate`,
# `fabric-ready check`. It holds no compiler, no package installer of Python and no shell script of its own.

# pyverbs is compiled against one Python and one libibverbs: the release decides both.
FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/*
# The package of pyverbs wants rdma-core, and that wants udev and systemd: 40 MB of daemons that are the node's business
# and not a container's. So its files are taken alone; the libraries that they load are packages of the last stage.
WORKDIR /pyverbs
RUN apt-get update \
 && apt-get download python3-pyverbs \
 && dpkg-deb --extract python3-pyverbs_*.deb . \
 && rm -rf /var/lib/apt/lists/* python3-pyverbs_*.deb
# pip works on the product's environment from outside, so that the environment does not contain it. What lies in the
# distribution's place (pyverbs) is seen from inside.
RUN python3 -m venv /opt/build \
 && python3 -m venv --without-pip --system-site-packages /opt/fabric-ready
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements/ /src/requirements/
# Of the Kubernetes client the asynchronous half and the typed models are never imported; without the one, and with the
# other not compiled, the image is 90 MB smaller.
RUN /opt/build/bin/pip --python /opt/fabric-ready/bin/python install --no-compile \
      --require-hashes --only-binary :all: --requirement /src/requirements/runtime.txt \
 && rm -r /opt/fabric-ready/lib/python3*/site-packages/kubernetes/aio \
 && python3 -m compileall -q -x '/kubernetes/client/(api|models)/' /opt/fabric-ready
# The build backend.
RUN /opt/build/bin/pip install --require-hashes --only-binary :all: --requirement /src/requirements/build.txt
COPY pyproject.toml README.md LICENSE /src/
COPY probes/ /src/probes/
COPY agent/ /src/agent/
# A root of its own makes a layer of its own: a change of the product does not move its dependencies again.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /src \
 && /opt/build/bin/pip --python /opt/fabric-ready/bin/python install --no-deps --root /product /wheels/*.whl

FROM debian:trixie-slim
LABEL org.opencontainers.image.title="fabric-readiness-agent" \
      org.opencontainers.image.description="Proves that a GPU node's RDMA fabric moves bytes" \
      org.opencontainers.image.licenses="Apache-2.0"
# ibverbs-providers is the user-space half of each vendor's driver; the last two are what pyverbs loads besides.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 ibverbs-providers libpython3.13 librdmacm1t64 \
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
COPY --from=build /pyverbs/usr/lib/python3/dist-packages /usr/lib/python3/dist-packages
COPY --from=build /opt/fabric-ready /opt/fabric-ready
COPY --from=build /product/opt/fabric-ready /opt/fabric-ready
ENV PATH=/opt/fabric-ready/bin:$PATH \
    PYTHONUNBUFFERED=1
ENTRYPOINT ["fabric-ready"]
CMD ["agent"]
