"""The web console: a page without build step or external assets that talks to the native protocol."""
