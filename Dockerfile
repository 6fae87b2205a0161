# `draftwood serve` on a CPU, with the native kernels.
#
#   docker build --tag draftwood .
#   docker run --rm draftwood generate "Story: In Corfe there lived a sailor called"
#
# Without arguments it serves the embedded pair on loopback, as everywhere: nothing outside the container reaches it
# (with --network host, programs of this machine do). To publish the port, listen on all addresses of the container,
# with a key, and name the address of the machine that is published; this one is reached from the machine alone:
#
#   docker run --rm --publish 127.0.0.1:8000:8000 --env DRAFTWOOD_API_KEY=... draftwood serve --host 0.0.0.0
#
# Your own models: --volume /path/to/models:/models:ro, then serve --target /models/NAME.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/draftwood \
    && /opt/draftwood/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
       --constraint constraints.txt '.[gguf,serve,structured]' ./native

FROM python:3.11-slim
RUN useradd --create-home --uid 1000 draftwood
COPY --from=build /opt/draftwood /opt/draftwood
ENV PATH=/opt/draftwood/bin:$PATH
USER 1000
WORKDIR /home/draftwood
EXPOSE 8000
ENTRYPOINT ["draftwood"]
CMD ["serve"]
