"""tests/golden/media-odd: pictures and sounds of kinds that media-prep lacks, as small as they get, and the pixels that Pillow makes of the pictures.

    pip install numpy pillow safetensors      also ffmpeg and ImageMagick's convert
    media_odd.py tests/golden/media-odd
"""
import os
import subprocess
import sys

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

W, H = 19, 13


def draw():
    y, x = np.mgrid[0:H, 0:W]
    rgb = np.stack([255 * x / (W - 1), 255 * y / (H - 1), 128 + 100 * np.sin(x * 0.9) * np.cos(y * 0.7)], -1)
    rgb[3:8, 4:9] = [200, 30, 60]
    return Image.fromarray(rgb.round().astype(np.uint8))


def on_white(image):
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255))
    white.alpha_composite(rgba)
    return np.asarray(white.convert("RGB"))


def main(folder):
    os.makedirs(folder, exist_ok=True)
    at = lambda name: os.path.join(folder, name)
    picture = draw()
    glass = picture.copy()
    glass.putalpha(Image.fromarray((np.mgrid[0:H, 0:W].sum(0) * 8).astype(np.uint8)))
    picture.save(at("plain444.jpg"), quality=90, subsampling=0)
    picture.save(at("plain422.jpg"), quality=80, subsampling=1)
    picture.save(at("plain420.jpg"), quality=80, subsampling=2)
    picture.save(at("restart.jpg"), quality=80, subsampling=2, restart_marker_blocks=1)
    picture.save(at("progressive.jpg"), quality=80, progressive=True, optimize=True)
    picture.convert("L").save(at("grey.jpg"), quality=80)
    picture.convert("CMYK").save(at("cmyk.jpg"), quality=80)
    picture.save(at("lossy.webp"), quality=60)
    glass.save(at("lossy_alpha.webp"), quality=60)
    picture.save(at("moving.webp"), lossless=True, save_all=True, append_images=[glass], duration=50)
    picture.save(at("moving.png"), save_all=True, append_images=[glass, picture.rotate(90)], optimize=True)
    picture.quantize(8).save(at("moving.gif"), save_all=True, append_images=[picture.rotate(180).quantize(8)])
    picture.save("/tmp/media_odd.png")
    subprocess.run(["convert", "/tmp/media_odd.png", "-sampling-factor", "1x2", "-quality", "80", "-strip", at("plain440.jpg")], check=True)
    subprocess.run(["convert", "/tmp/media_odd.png", "-sampling-factor", "4x1", "-quality", "80", "-strip", at("plain411.jpg")], check=True)
    subprocess.run(["convert", "/tmp/media_odd.png", "-colors", "16", "-type", "Palette", "-compress", "RLE", "BMP3:" + at("rle8.bmp")], check=True)
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.rsplit(".", 1)[-1] in ("jpg", "png", "gif", "webp", "bmp"):
            image = Image.open(at(name))
            image.load()
            tensors[name] = np.asarray(image.convert("RGB")) if image.mode == "CMYK" else on_white(image)
    save_file(tensors, at("golden.safetensors"))
    # 0.25 s of a tone that rises from 300 to 900 Hz; t_audio.c writes the same tone as WAV
    tone = "aevalsrc=0.5*sin(2*PI*(300*t+1200*t*t)):s=%d:d=0.25"
    for name, rate, more in (("tag.mp3", 16000, ["-b:a", "32k"]), ("no_tag.mp3", 16000, ["-b:a", "32k", "-write_xing", "0"]),
                             ("tone.opus.ogg", 48000, ["-c:a", "libopus", "-b:a", "24k"]),
                             ("tone.vorbis.ogg", 22050, ["-c:a", "libvorbis", "-b:a", "32k"])):
        subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", tone % rate, "-ac", "1", "-map_metadata", "-1", "-fflags", "+bitexact",
                        "-flags:a", "+bitexact", "-id3v2_version", "0"] + more + [at(name)], check=True)


main(sys.argv[1])
