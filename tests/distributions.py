"""Fakes installed distributions."""


def install(site, name, version, entry_points=""):
    """Writes into a folder the files by which an installed distribution is found."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
