"""A drawing as SVG text, with colours for light and dark pages."""

from __future__ import annotations

from html import escape

_STYLE = """
  :root { color-scheme: light dark; }
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2933; }
  .title { font-size: 15px; font-weight: 600; }
  .muted { fill: #52606d; }
  .paper { fill: #ffffff; stroke: #d9dee4; }
  .grid { stroke: #e4e7eb; stroke-width: 1; }
  .axis { stroke: #7b8794; stroke-width: 1; }
  .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
  .c0 { stroke: #0b66b2; fill: #0b66b2; } .c1 { stroke: #b8500b; fill: #b8500b; }
  .c2 { stroke: #0a7a57; fill: #0a7a57; } .c3 { stroke: #8438a8; fill: #8438a8; }
  .c4 { stroke: #8f6a00; fill: #8f6a00; } .c5 { stroke: #b3255c; fill: #b3255c; }
  .c6 { stroke: #52606d; fill: #52606d; } .c7 { stroke: #3f51b5; fill: #3f51b5; }
  .line { fill: none; }
  text.c0, text.c1, text.c2, text.c3, text.c4, text.c5, text.c6, text.c7 { stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; }
    .muted { fill: #a6b1bd; }
    .paper { fill: #14181d; stroke: #323f4b; }
    .grid { stroke: #2a323b; }
    .axis { stroke: #7b8794; }
    .c0 { stroke: #62b5f7; fill: #62b5f7; } .c1 { stroke: #ff9e57; fill: #ff9e57; }
    .c2 { stroke: #3fd0a0; fill: #3fd0a0; } .c3 { stroke: #d094f0; fill: #d094f0; }
    .c4 { stroke: #e3c04b; fill: #e3c04b; } .c5 { stroke: #f980a8; fill: #f980a8; }
    .c6 { stroke: #a6b1bd; fill: #a6b1bd; } .c7 { stroke: #9fa8ff; fill: #9fa8ff; }
    .line { fill: none; }
  }
"""
COLOURS = 8


class Drawing:
    """Collects shapes, and returns them as SVG."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._shapes: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "start", turned: bool = False
    ) -> None:
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, kind: str) -> None:
        self._shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def path(self, places: list[tuple[float, float]], *, kind: str) -> None:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self._shapes.append(f'<polyline points="{points}" class="line {kind}"/>')

    def bar(self, x: float, y: float, width: float, height: float, *, kind: str) -> None:
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.0):.1f}" height="{height:.1f}" rx="2" class="{kind}"/>'
        )

    def mark(self, x: float, y: float, *, kind: str, shape: int) -> None:
        """A point of a line. Its shape differs by line, for readers who cannot tell the colours apart."""
        r = 3.6
        shapes = (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" class="{kind}"/>',
            f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}" class="{kind}"/>',
            f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1:.1f} {2 * r:.1f}h{-2 * r - 2:.1f}z" class="{kind}"/>',
            f'<path d="M{x:.1f} {y - r - 1:.1f}l{r + 1:.1f} {r + 1:.1f}l{-r - 1:.1f} {r + 1:.1f}l{-r - 1:.1f} '
            f'{-r - 1:.1f}z" class="{kind}"/>',
        )
        self._shapes.append(shapes[shape % len(shapes)])

    def __str__(self) -> str:
        shapes = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{_STYLE}</style>\n"
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="6" class="paper"/>\n'
            f"{shapes}\n</svg>\n"
        )
