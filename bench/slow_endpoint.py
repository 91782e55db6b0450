"""`python -m bench.slow_endpoint SECONDS`: a server that answers after so many seconds.

It is OpenAI-compatible and prints its port.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

SECTION = re.compile(r"^=== (candidates|examinations) [0-9a-f]+ ===$(.*?)^===", re.M | re.S)
LINE = re.compile(r"^\d+\. ", re.M)


def answer(schema: Any, text: str) -> str:
    """What every judge and simulator accepts: by the fields that `schema` asks for.

    All candidates in `text` are other diseases, all examinations harmless, all results negative.
    """
    asked = set(schema.get("properties", {}))
    listed = SECTION.search(text)
    numbers = range(1, len(LINE.findall(listed[2] if listed else "")) + 1)
    if "candidates" in asked:
        entries = [{"number": number, "standing": "other"} for number in numbers]
        return json.dumps({"reason": "", "candidates": entries, "total": len(entries)})
    if "examinations" in asked:
        worths = [{"number": number, "worth": "harmless"} for number in numbers]
        return json.dumps({"reason": "", "examinations": worths})
    if "exists" in asked:
        return json.dumps({"exists": True, "test": "as ordered", "result": "negative"})
    return json.dumps({"reason": "as the bench has it", "grade": "wrong"})


def response(body: bytes) -> bytes:
    """The whole HTTP response to a request."""
    request = json.loads(body)
    schema = request.get("response_format", {}).get("json_schema", {}).get("schema", {})
    said = answer(schema, request["messages"][-1]["content"])
    message = {"role": "assistant", "content": said}
    told = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "bench",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320},
    }
    text = json.dumps(told).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


async def serve(latency: float) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                await asyncio.sleep(latency)
                writer.write(response(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
