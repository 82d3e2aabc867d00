//! Sandboxes of templates with many layers, on a real kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common::layered_templates::tar;
use crate::common::snapshot_helpers::{collected, files, legacy, plain};
use crate::common::{World, in_world, instance_id, target};
use atoll_container::EngineConfig;
use atoll_provider::support::*;
use atoll_provider::{InstanceSpec, Provider};

async fn names(world: &World, spec: &InstanceSpec) -> Vec<String> {
    let layer = world.engine.capture(&files(spec), &spec.template, &spec.template_version).await.unwrap();
    let layer = collected(layer).await;
    let mut archive = tar::Archive::new(layer.as_slice());
    let path = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
        String::from_utf8(entry.unwrap().path_bytes().into_owned()).unwrap()
    };
    let mut names: Vec<String> = archive.entries().unwrap().map(path).collect();
    names.sort();
    names
}

fn many(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        // Up to the largest number of stacked folders, and more, which are merged.
        for count in [1, 2, 30, 31, 40] {
            let mut spec = world.many_layers(count);
            let template = world.catalog.pinned("stacked", &spec.template_version).unwrap();
            assert!(template.layers.len() <= 34, "{count}: {}", template.layers.len());
            let booted = world.create(&spec).await;
            let (last, before) = (count - 1, count.saturating_sub(2));
            let said = world
                .said(&spec, &booted, "cat /l/top; echo; ls /l | grep -v top | sort -n | tr '\\n' ' '")
                .await;
            let mut there = vec![before, last];
            there.dedup();
            let there: Vec<String> = there.iter().map(ToString::to_string).collect();
            assert_eq!(said, format!("{last}\n{}", there.join(" ")).trim(), "{count} layers");
            assert!(world.said(&spec, &booted, "busybox | head -1").await.contains("BusyBox"));
            world.said(&spec, &booted, &format!("rm /l/top; echo x >/l/{last}")).await;
            world.engine.halt(&target(&spec)).await.unwrap();
            assert_eq!(names(&world, &spec).await, ["l/", "l/.wh.top", &format!("l/{last}")]);
            spec.instance = instance_id();
            let booted = world.engine.boot(&spec).await.unwrap();
            assert_eq!(
                world.said(&spec, &booted, &format!("cat /l/{last}; ls /l/top 2>&1 | grep -c No")).await,
                "x\n1"
            );
            world.destroy(&spec).await;
        }
        world
    });
}

#[test]
fn up_to_the_most_layers_are_stacked_and_captured_over() {
    many(plain);
}

#[test]
fn up_to_the_most_layers_are_stacked_by_the_paths_for_old_kernels() {
    many(legacy);
}

#[test]
fn a_captured_layer_makes_the_same_files_again() {
    in_world(plain, |world| async {
        let bottom =
            world.add_layer(&tar(&[("d/", ""), ("d/e/", ""), ("d/e/f", "1"), ("d/g", "2"), ("h", "3")]));
        let spec = world.stacked(vec![bottom]);
        let booted = world.create(&spec).await;
        world
            .said(
                &spec,
                &booted,
                "set -e; rm -r /d/e; mkdir /d/e; echo n >/d/e/n; rm /h; mkdir /h; echo i >/h/i; mv /d/g /d/k; \
                 ln /d/k /d/l; ln -s k /d/m; chown 5:6 /d/k; chmod 4750 /d/k; mkdir -p /x/y/z; touch -d @5 /x/y",
            )
            .await;
        let look = "cd /; find d h x | sort | while read f; do stat -c '%N %A %u:%g' $f; [ -f $f ] && stat -c %h $f && cat $f; done; true";
        let before = world.said(&spec, &booted, look).await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let layer =
            world.engine.capture(&files(&spec), &spec.template, &spec.template_version).await.unwrap();
        let layer = world.add_layer(&collected(layer).await);
        world.destroy(&spec).await;
        let next = world.stacked(vec![bottom, layer]);
        let booted = world.create(&next).await;
        assert_eq!(world.said(&next, &booted, look).await, before);
        world.engine.halt(&target(&next)).await.unwrap();
        assert_eq!(names(&world, &next).await, Vec::<String>::new(), "nothing more");
        world.destroy(&next).await;
        world
    });
}
