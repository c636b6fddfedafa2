"""An exception out of a coroutine."""
import asyncio

async def fetch():
    await asyncio.sleep(0)
    raise ConnectionResetError("object store closed the connection")

asyncio.run(fetch())
