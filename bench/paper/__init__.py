"""The report of a folder of runs: Markdown with tables, and charts as SVG."""
