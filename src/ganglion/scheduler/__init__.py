"""What runs next and where its KV lives; pure: no device, clock or asyncio."""
