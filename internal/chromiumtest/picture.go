package chromiumtest

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Picture writes a picture of the page to a PNG file, for docs.
func (b *Browser) Picture(file string) {
	b.t.Helper()
	small, err := reduceColours(b.Screenshot())
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err == nil {
		err = os.WriteFile(file, small, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// reduceColours returns a PNG with 256 colours of another one, which is a third of its size: the
// most frequent ones, and of others that differ little the most frequent one.
func reduceColours(text []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	type similar [3]uint32
	count := map[color.Color]int{}
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			count[full.At(x, y)]++
		}
	}
	best, total := map[similar]color.Color{}, map[similar]int{}
	for c, n := range count {
		r, g, b, _ := c.RGBA()
		group := similar{r >> 12, g >> 12, b >> 12}
		if have, ok := best[group]; !ok || n > count[have] {
			best[group] = c
		}
		total[group] += n
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	// the surfaces, some of which differ little
	palette := color.Palette(frequent[:min(48, len(frequent))])
	for _, group := range slices.SortedFunc(maps.Keys(total), func(a, b similar) int { return total[b] - total[a] }) {
		palette = append(palette, best[group])
	}
	reduced := image.NewPaletted(full.Bounds(), palette[:min(256, len(palette))])
	draw.Draw(reduced, full.Bounds(), full, image.Point{}, draw.Src)
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced)
	return out.Bytes(), err
}
