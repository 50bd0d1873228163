# Runs onnxtile in a container: by default the demo, else the command that follows.
#
#     docker build -t onnxtile .
#     docker run --rm onnxtile
#     docker run --rm -v "$PWD:/work" onnxtile plan model.onnx
FROM python:3.12-slim
COPY pyproject.toml README.md LICENSE /src/
COPY onnxtile /src/onnxtile
COPY patterns /src/patterns
COPY models /src/models
COPY limits /src/limits
RUN pip install --no-cache-dir /src && rm -r /src
WORKDIR /work
ENTRYPOINT ["onnxtile"]
CMD ["demo"]
