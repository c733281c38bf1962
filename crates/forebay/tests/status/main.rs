//! `forebay status`: its JSON compared with recorded samples, and its forms for people and monitors.

#[allow(dead_code)] // The tests of pairs use the rest of it.
#[path = "../pair/scene.rs"]
mod scene;
mod sample;
#[path = "../support/mod.rs"]
mod support;
mod samples;
mod screen;
