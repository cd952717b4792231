//! A line chart as SVG and as PNG, both from one list of shapes.

use embedded_graphics::mono_font::{MonoTextStyle, ascii::FONT_10X20};
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{Line, PrimitiveStyle};
use embedded_graphics::text::Text;
use std::convert::Infallible;

/// Pixels across and down.
const SIZE: (u32, u32) = (900, 480);
/// The corners of the plot area, in pixels: left, top, right, bottom.
const PLOT: (i32, i32, i32, i32) = (90, 50, 880, 420);
const BLACK: Rgb888 = Rgb888::new(40, 40, 40);
const GREY: Rgb888 = Rgb888::new(215, 215, 215);
const COLOURS: [Rgb888; 3] = [Rgb888::new(200, 80, 50), Rgb888::new(40, 110, 180), Rgb888::new(60, 150, 80)];

/// What is drawn.
enum Shape {
    Line {
        points: Vec<Point>,
        colour: Rgb888,
        width: u32,
    },
    /// From the left end of its base line.
    Text {
        at: Point,
        text: String,
        colour: Rgb888,
    },
}

/// Lists of numbers over their positions. What stands out above the rest is drawn at the upper edge.
pub struct Chart {
    /// The headline, with the unit.
    pub title: String,
    /// Name and numbers of each line.
    pub lines: Vec<(String, Vec<f64>)>,
}

impl Chart {
    fn shapes(&self) -> Vec<Shape> {
        let (left, top, right, bottom) = PLOT;
        let mut all: Vec<f64> = self.lines.iter().flat_map(|(_, values)| values.iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        let most = all.get(all.len() * 95 / 100).map_or(1.0, |value| value * 1.25);
        let height = |value: f64| bottom - ((value / most).min(1.0) * f64::from(bottom - top)) as i32;
        let text =
            |x: i32, y: i32, text: String, colour: Rgb888| Shape::Text { at: Point::new(x, y), text, colour };
        let mut shapes = vec![text(left, 30, self.title.clone(), BLACK)];
        for tick in 0..=4 {
            let value = most * f64::from(tick) / 4.0;
            let points = vec![Point::new(left, height(value)), Point::new(right, height(value))];
            shapes.push(Shape::Line { points, colour: GREY, width: 1 });
            shapes.push(text(10, height(value) + 6, format!("{value:>7.2}"), BLACK));
        }
        for (number, (name, values)) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let step = f64::from(right - left) / values.len().saturating_sub(1).max(1) as f64;
            let point =
                |(i, value): (usize, &f64)| Point::new(left + (i as f64 * step) as i32, height(*value));
            let points = values.iter().enumerate().map(point).collect();
            shapes.push(Shape::Line { points, colour, width: 2 });
            shapes.push(text(left + 330 * number as i32, 455, name.clone(), colour));
        }
        shapes
    }

    /// The chart as SVG.
    pub fn to_svg(&self) -> String {
        let (width, height) = SIZE;
        let hex = |c: Rgb888| format!("#{:02x}{:02x}{:02x}", c.r(), c.g(), c.b());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"monospace\" font-size=\"16\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for shape in self.shapes() {
            svg += &match shape {
                Shape::Line { points, colour, width } => {
                    let points: Vec<String> = points.iter().map(|p| format!("{},{}", p.x, p.y)).collect();
                    let (points, colour) = (points.join(" "), hex(colour));
                    format!(
                        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>\n"
                    )
                }
                Shape::Text { at, text, colour } => {
                    let text = text.replace('&', "&amp;").replace('<', "&lt;");
                    let colour = hex(colour);
                    format!(
                        "<text x=\"{}\" y=\"{}\" fill=\"{colour}\" xml:space=\"preserve\">{text}</text>\n",
                        at.x, at.y
                    )
                }
            };
        }
        svg + "</svg>\n"
    }

    /// The chart as PNG.
    pub fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut canvas = Canvas { pixels: vec![255; (SIZE.0 * SIZE.1 * 3) as usize] };
        for shape in self.shapes() {
            let Ok(()) = match shape {
                Shape::Line { points, colour, width } => {
                    let style = PrimitiveStyle::with_stroke(colour, width);
                    points
                        .windows(2)
                        .try_for_each(|ends| Line::new(ends[0], ends[1]).into_styled(style).draw(&mut canvas))
                }
                Shape::Text { at, text, colour } => {
                    Text::new(&text, at, MonoTextStyle::new(&FONT_10X20, colour))
                        .draw(&mut canvas)
                        .map(|_| ())
                }
            };
        }
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, SIZE.0, SIZE.1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header()?.write_image_data(&canvas.pixels)?;
        Ok(bytes)
    }
}

/// Red, green and blue of every pixel, row by row.
struct Canvas {
    pixels: Vec<u8>,
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(SIZE.0, SIZE.1)
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        let area = self.bounding_box();
        for Pixel(point, colour) in pixels.into_iter().filter(|pixel| area.contains(pixel.0)) {
            let start = (point.y as usize * SIZE.0 as usize + point.x as usize) * 3;
            self.pixels[start..start + 3].copy_from_slice(&[colour.r(), colour.g(), colour.b()]);
        }
        Ok(())
    }
}
